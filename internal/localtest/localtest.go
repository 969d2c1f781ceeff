// Package localtest provides a real PostgreSQL to a test binary: one server per binary, and a new database
// per test. Package kafkatest does so with Kafka. It is for tests only, and never makes a server less durable
// than elsewhere.
//
// Call [Main] from TestMain: it stops the servers and removes their data. Without it, a binary still
// leaves no process behind on Linux, and a later run removes its data. Data are kept in memory
// (/dev/shm) where there is enough of it, otherwise in the temporary folder: a killed server keeps its
// data in either.
//
// Roles belong to a PostgreSQL server, not to a database: concurrent tests in one binary share them. Code
// that creates a role must expect that another test has just created it, and no test may drop a role or
// change its rights.
package localtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/meterplex/meterplex/infra/local"
)

// Server is the test binary's PostgreSQL. A test that kills it must not run in parallel with others and
// must restart it.
type Server struct{ *local.Postgres }

// servers belong to this binary. A test binary is one process with one TestMain, so they are package
// variables.
var servers struct {
	mu       sync.Mutex
	dir      string
	postgres *Server
	inUse    *os.File // the lock of dir
	migrated bool     // the template is made
	others   []func(ctx context.Context) error
}

// Option is a check that [Main] runs after the tests, once the servers have stopped.
type Option func() error

// NoLeaks fails the binary if goroutines are left. It waits for goroutines that end late on a busy
// machine.
func NoLeaks(opts ...goleak.Option) Option {
	// sarama's metrics start a ticker that is never stopped.
	opts = append(opts, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
	// Watermill's suite stops reading from some of its subscribers, which then wait for ever.
	const multiplier = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe"
	opts = append(opts, goleak.IgnoreAnyFunction(multiplier+".func2"), goleak.IgnoreAnyFunction(multiplier+".func3"))
	// The stages of a connection through toxiproxy send to the next one, which may have ended, and then wait for ever.
	const toxiproxy = "github.com/Shopify/toxiproxy/v2"
	opts = append(opts, goleak.IgnoreAnyFunction(toxiproxy+"/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction(toxiproxy+".(*ToxicLink).read"))
	return func() (err error) {
		for end := time.Now().Add(sessionGrace); ; time.Sleep(100 * time.Millisecond) {
			if err = goleak.Find(opts...); err == nil || time.Now().After(end) {
				return err
			}
		}
	}
}

// gcPercent spares the tests most collections of garbage: they allocate much, and keep little.
const gcPercent = 300

// Main runs the tests, stops the servers, removes their data and exits.
func Main(m *testing.M, opts ...Option) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	code := m.Run()
	if err := stopAll(); err != nil {
		fmt.Fprintln(os.Stderr, "localtest:", err)
		code = max(code, 1)
	}
	for _, check := range opts {
		if err := check(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, "localtest:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func stopAll() error {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for _, stop := range servers.others {
		if err := stop(ctx); err != nil {
			return err
		}
	}
	closeSession(superuser.Swap(nil))
	if servers.postgres != nil {
		if err := servers.postgres.Stop(ctx); err != nil {
			return fmt.Errorf("stop PostgreSQL: %w", err)
		}
		if err := os.RemoveAll(servers.postgres.Dir()); err != nil {
			return fmt.Errorf("remove the test data: %w", err)
		}
	}
	if err := os.RemoveAll(servers.dir); err != nil {
		return fmt.Errorf("remove the test data: %w", err)
	}
	if servers.inUse != nil {
		_ = servers.inUse.Close()
	}
	servers.postgres, servers.others, servers.dir, servers.inUse, servers.migrated = nil, nil, "", nil, false
	return nil
}

// Postgres returns the binary's PostgreSQL. The first call starts it.
func Postgres(t testing.TB) *Server {
	t.Helper()
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if servers.postgres != nil {
		return servers.postgres
	}
	p, err := local.StartPostgres(context.Background(), local.PostgresConfig{
		DataDir: dataDir(t),
		Settings: map[string]string{
			"max_connections": "400",
			"shared_buffers":  "128MB",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	servers.postgres = &Server{p}
	quickLogins(t, servers.postgres)
	return servers.postgres
}

// Share returns the folder of this binary's servers for one more, which Main stops before it removes the folder.
func Share(t testing.TB, stop func(ctx context.Context) error) string {
	t.Helper()
	servers.mu.Lock()
	defer servers.mu.Unlock()
	servers.others = append(servers.others, stop)
	return dataDir(t)
}

// Folder returns a folder for servers that the test starts itself. PostgreSQL's account can reach it.
// Clean-up functions registered after the call run before the folder is removed.
func Folder(t testing.TB) string {
	t.Helper()
	servers.mu.Lock()
	dir := filepath.Join(dataDir(t), "own-"+Unique())
	servers.mu.Unlock()
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil { // regardless of the umask
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Database creates an empty database for the test and returns its address for its owner, a role with
// CREATEROLE that is no superuser. The database is dropped when the test ends, even if sessions are
// connected; such sessions fail the test.
func Database(t testing.TB) string {
	t.Helper()
	return database(t, "")
}

// database copies a template; "" is an empty one.
func database(t testing.TB, template string) string {
	t.Helper()
	server := Postgres(t)
	name := "test_" + Unique()
	quoted := pgx.Identifier{name}.Sanitize()
	statement := "CREATE DATABASE " + quoted + " OWNER meterplex"
	if template != "" {
		statement += " TEMPLATE " + template + " STRATEGY FILE_COPY" // a third cheaper than by way of the server's log
	}
	admin(t, server, statement)
	t.Cleanup(func() {
		noSessions(t, server, name)
		admin(t, server, "DROP DATABASE IF EXISTS "+quoted+" WITH (FORCE)")
	})
	return at(t, server.URL(), name)
}

// at returns the address of another database of a server.
func at(t testing.TB, address, database string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + database
	return u.String()
}

// template is the database that Migrated copies.
const template = "template_migrated"

// A log's name is its own, so that a copy gets another one.
const renameLog = `UPDATE log_identity SET log_id = gen_random_uuid()`

// Migrated makes a database with the service's schema, as Database does. The first call lets
// migrate make the schema, which the others copy.
func Migrated(t testing.TB, migrate func(ctx context.Context, url string) (int, error)) string {
	t.Helper()
	makeTemplate(t, migrate)
	address := database(t, template)
	conn, err := pgx.Connect(t.Context(), address)
	if err == nil {
		_, err = conn.Exec(t.Context(), renameLog)
		err = errors.Join(err, conn.Close(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// makeTemplate makes the template once for each server.
func makeTemplate(t testing.TB, migrate func(ctx context.Context, url string) (int, error)) {
	t.Helper()
	server := Postgres(t)
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if servers.migrated {
		return
	}
	admin(t, server, "DROP DATABASE IF EXISTS "+template)
	admin(t, server, "CREATE DATABASE "+template+" OWNER meterplex")
	if _, err := migrate(t.Context(), at(t, server.URL(), template)); err != nil {
		t.Fatalf("migrate the template: %v", err)
	}
	noSessions(t, server, template)
	servers.migrated = true
}

// SuperuserURL returns the superuser's address of a test's database.
func SuperuserURL(t testing.TB, database string) string {
	t.Helper()
	name, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	return at(t, Postgres(t).AdminURL(), strings.TrimPrefix(name.Path, "/"))
}

// sessionGrace bounds how long a session may take to end after its client has, on a busy machine.
const sessionGrace = 20 * time.Second

const sessionsSQL = `SELECT coalesce(string_agg(format('%s, %s: %s', application_name, state, left(query, 200)), E'\n'), '')
FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'`

// noSessions fails the test if sessions are still connected to its database: a connection, and perhaps a
// transaction, was not released.
func noSessions(t testing.TB, server *Server, database string) {
	t.Helper()
	asSuperuser(t, server, func(ctx context.Context, conn *pgx.Conn) {
		for end := time.Now().Add(sessionGrace); ; time.Sleep(20 * time.Millisecond) {
			var sessions string
			if err := conn.QueryRow(ctx, sessionsSQL, database).Scan(&sessions); err != nil {
				t.Errorf("query the connected sessions: %v", err)
				return
			}
			if sessions == "" {
				return
			}
			if time.Now().After(end) {
				t.Errorf("sessions left in the test's database:\n%s", sessions)
				return
			}
		}
	})
}

func admin(t testing.TB, server *Server, statement string) {
	t.Helper()
	asSuperuser(t, server, func(ctx context.Context, conn *pgx.Conn) {
		if _, err := conn.Exec(ctx, statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	})
}

// asSuperuser lends the binary's session of the superuser, or a new one while another test has it: new sessions each time
// are a third of the server's work for a database.
func asSuperuser(t testing.TB, server *Server, do func(ctx context.Context, conn *pgx.Conn)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn := superuser.Swap(nil)
	if conn == nil || conn.Config().ConnString() != server.AdminURL() || conn.Ping(ctx) != nil {
		closeSession(conn)
		var err error
		if conn, err = pgx.Connect(ctx, server.AdminURL()); err != nil {
			t.Errorf("connect as the superuser: %v", err)
			return
		}
	}
	defer func() { closeSession(superuser.Swap(conn)) }()
	do(ctx, conn)
}

// superuser is the session that no test uses at the moment.
var superuser atomic.Pointer[pgx.Conn]

func closeSession(conn *pgx.Conn) {
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

// Unique returns eight hexadecimal digits, for names that no other test uses.
func Unique() string {
	b := make([]byte, 4)
	rand.Read(b)
	return hex.EncodeToString(b)
}
