// Package localtest gives a test binary its real servers: one PostgreSQL and
// one Kafka for the whole binary, a fresh database or topic prefix for each
// test. It is for tests only, and nothing in it makes a server less durable
// than it is elsewhere.
//
// Call [Main] from TestMain; it stops the servers and removes their data. A
// binary that does not still leaves no process behind on Linux, and its data
// is removed by a later run.
//
// Roles belong to a PostgreSQL server, not to a database: tests that run at the
// same time in one binary share them. What makes a role must bear that another
// made it a moment before, and no test may drop one or change its rights.
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
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/meterplex/meterplex/infra/local"
)

// Server is the test binary's PostgreSQL. A test that kills it must not run in
// parallel with others and must restart it.
type Server struct{ *local.Postgres }

// servers are this binary's; a test binary is one process with one TestMain,
// so that they live in the package.
var servers struct {
	mu       sync.Mutex
	dir      string
	postgres *Server
	kafka    *local.Kafka
}

// Option is something that [Main] checks after the tests and after the servers
// were stopped.
type Option func() error

// NoLeaks fails the binary when a goroutine is left behind. What is about to end gets
// the time for it that a busy machine takes.
func NoLeaks(opts ...goleak.Option) Option {
	return func() (err error) {
		for end := time.Now().Add(leaving); ; time.Sleep(100 * time.Millisecond) {
			if err = goleak.Find(opts...); err == nil || time.Now().After(end) {
				return err
			}
		}
	}
}

// Main runs the tests, stops the servers, removes their data and exits.
func Main(m *testing.M, opts ...Option) {
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
	if servers.kafka != nil {
		if err := servers.kafka.Stop(ctx); err != nil {
			return fmt.Errorf("stop Kafka: %w", err)
		}
	}
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
	servers.postgres, servers.kafka, servers.dir = nil, nil, ""
	return nil
}

// Postgres is the binary's PostgreSQL, started by the first test that asks.
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
			"max_connections": "200",
			"shared_buffers":  "128MB",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	servers.postgres = &Server{p}
	return servers.postgres
}

// Kafka is the binary's broker, started by the first test that asks. The test
// is failed, not skipped, where there is no Java: a suite that skips its broker
// proves nothing.
func Kafka(t testing.TB) *local.Kafka {
	t.Helper()
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if servers.kafka != nil {
		return servers.kafka
	}
	k, err := local.StartKafka(context.Background(), local.KafkaConfig{DataDir: dataDir(t), CacheDir: local.CacheDir()})
	if err != nil {
		t.Fatal(err)
	}
	servers.kafka = k
	return k
}

// KafkaCluster is n brokers of the test's own, which end with it.
func KafkaCluster(t testing.TB, n int) local.KafkaCluster {
	t.Helper()
	servers.mu.Lock()
	dir := filepath.Join(dataDir(t), "cluster-"+random())
	servers.mu.Unlock()
	c, err := local.StartKafkaCluster(context.Background(), local.KafkaConfig{DataDir: dir, CacheDir: local.CacheDir()}, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// In order the last one could not end: it asks the others first.
		if err := errors.Join(c.Kill(), c.Stop(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Folder is a folder of the test's own for servers that the test starts itself. The
// account that PostgreSQL runs as can reach it. Clean-up functions registered after the
// call run before the folder is removed.
func Folder(t testing.TB) string {
	t.Helper()
	servers.mu.Lock()
	dir := filepath.Join(dataDir(t), "own-"+random())
	servers.mu.Unlock()
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TopicPrefix is unique to the test: "t", eight hexadecimal digits, a dot.
// Topics are not removed; they go with the broker.
func TopicPrefix(t testing.TB) string {
	t.Helper()
	return "t" + random() + "."
}

// Database makes an empty database for the test and returns its address for
// the role that owns it: no superuser, with CREATEROLE. It is dropped when the
// test ends, whoever is still connected to it; that somebody is fails the test.
func Database(t testing.TB) string {
	t.Helper()
	server := Postgres(t)
	name := "test_" + random()
	quoted := pgx.Identifier{name}.Sanitize()
	admin(t, server, "CREATE DATABASE "+quoted+" OWNER meterplex")
	t.Cleanup(func() {
		left(t, server, name)
		admin(t, server, "DROP DATABASE IF EXISTS "+quoted+" WITH (FORCE)")
	})
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// SuperuserURL is the superuser's address of a test's database.
func SuperuserURL(t testing.TB, database string) string {
	t.Helper()
	name, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := url.Parse(Postgres(t).AdminURL())
	if err != nil {
		t.Fatal(err)
	}
	admin.Path = name.Path
	return admin.String()
}

// leaving is how long a session may take to end once its client is gone, on a
// machine that does much else.
const leaving = 20 * time.Second

const sessionsSQL = `SELECT coalesce(string_agg(format('%s, %s: %s', application_name, state, left(query, 200)), E'\n'), '')
FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'`

// left fails the test where something is still connected to its database: a
// connection, and with it perhaps a transaction, that nobody gave back.
func left(t testing.TB, server *Server, database string) {
	t.Helper()
	asSuperuser(t, server, func(ctx context.Context, conn *pgx.Conn) {
		for end := time.Now().Add(leaving); ; time.Sleep(20 * time.Millisecond) {
			var sessions string
			if err := conn.QueryRow(ctx, sessionsSQL, database).Scan(&sessions); err != nil {
				t.Errorf("ask who is connected: %v", err)
				return
			}
			if sessions == "" {
				return
			}
			if time.Now().After(end) {
				t.Errorf("still connected to the test's database:\n%s", sessions)
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

func asSuperuser(t testing.TB, server *Server, do func(ctx context.Context, conn *pgx.Conn)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.AdminURL())
	if err != nil {
		t.Errorf("connect as the superuser: %v", err)
		return
	}
	defer conn.Close(ctx)
	do(ctx, conn)
}

func random() string {
	b := make([]byte, 4)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// dirPattern names the data directories of test binaries.
const dirPattern = "meterplex-test-*"

// dataDir is called with the lock held.
func dataDir(t testing.TB) string {
	t.Helper()
	if servers.dir != "" {
		return servers.dir
	}
	sweep()
	dir, err := os.MkdirTemp("", dirPattern)
	if err != nil {
		t.Fatal(err)
	}
	// The database server may run as another user, who must pass through.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	servers.dir = dir
	return dir
}

// abandoned is longer than any test binary runs.
const abandoned = 24 * time.Hour

// sweep removes what killed test binaries left; what it cannot remove belongs
// to another user.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPattern))
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err == nil && time.Since(info.ModTime()) > abandoned {
			_ = os.RemoveAll(dir)
		}
	}
}
