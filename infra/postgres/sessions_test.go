package postgres

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// throughPooler returns the address of a pooler that drops the startup parameters of its clients.
func throughPooler(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	must.OK(t, err)
	server := u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go pool(client, server)
		}
	}()
	u.Host, u.RawQuery = l.Addr().String(), "sslmode=disable"
	return u.String()
}

// pool carries a client's connection, without the parameters other than its user and database.
func pool(client net.Conn, address string) {
	defer client.Close()
	backend := pgproto3.NewBackend(client, client)
	message, err := backend.ReceiveStartupMessage()
	start, ok := message.(*pgproto3.StartupMessage)
	if err != nil || !ok {
		return
	}
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	kept := map[string]string{"user": start.Parameters["user"], "database": start.Parameters["database"]}
	raw, err := (&pgproto3.StartupMessage{ProtocolVersion: start.ProtocolVersion, Parameters: kept}).Encode(nil)
	if err == nil {
		_, err = server.Write(raw)
	}
	if err != nil {
		return
	}
	go func() { _, _ = io.Copy(server, client); server.Close() }()
	_, _ = io.Copy(client, server)
}

// P6: without its role a session could alter the log, and see every tenant's rows.
func TestP6_ASessionWithoutItsRoleIsRefused(t *testing.T) {
	database := localtest.Migrated(t, Migrate)
	pooled := throughPooler(t, database)
	var wrong *WrongRole
	pool, err := Open(t.Context(), Config{URL: pooled})
	if err == nil {
		pool.Close()
	}
	if !errors.As(err, &wrong) || wrong.Role != "meterplex" ||
		!strings.Contains(err.Error(), `pooler dropped the startup parameter "role"`) {
		t.Errorf("a pool: %v", err)
	}
	db, err := WorkerDB(Config{URL: pooled})
	must.OK(t, err)
	defer db.Close()
	if err := db.PingContext(t.Context()); !errors.As(err, &wrong) {
		t.Errorf("a pool of database/sql: %v", err)
	}
}

// TestSessionsCompileNoPlans: PostgreSQL does by default. A session that keeps its plans forbids scans of tables, so that a scan of a small
// table without an index seems expensive and would be compiled at each run, for a second; a relay's lease may end meanwhile.
func TestSessionsCompileNoPlans(t *testing.T) {
	database := localtest.Migrated(t, Migrate)
	root, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, database))
	must.OK(t, err)
	defer root.Close(context.Background())
	must.Exec(t, root, `ALTER DATABASE `+pgx.Identifier{root.Config().Database}.Sanitize()+` SET jit = on`)
	for _, keep := range []bool{false, true} {
		pool, err := Open(t.Context(), Config{URL: database, KeepPlans: keep})
		must.OK(t, err)
		defer pool.Close()
		var jit string
		if err := pool.QueryRow(t.Context(), `SHOW jit`).Scan(&jit); err != nil || jit != "off" {
			t.Errorf("a session of a pool has jit=%s, %v", jit, err)
		}
		db, err := WorkerDB(Config{URL: database, KeepPlans: keep})
		must.OK(t, err)
		defer db.Close()
		if err := db.QueryRowContext(t.Context(), `SHOW jit`).Scan(&jit); err != nil || jit != "off" {
			t.Errorf("a session of database/sql has jit=%s, %v", jit, err)
		}
	}
}

// TestConnectionsAreCounted: the limit is the one that leaves the fewest connections.
func TestConnectionsAreCounted(t *testing.T) {
	database := localtest.Migrated(t, Migrate)
	pool, err := Open(t.Context(), Config{URL: database, MaxConns: 3})
	must.OK(t, err)
	defer pool.Close()
	root, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, database))
	must.OK(t, err)
	defer root.Close(context.Background())
	var server int
	if err := root.QueryRow(t.Context(),
		`SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int -
		 coalesce(current_setting('reserved_connections', true), '0')::int`).Scan(&server); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []struct {
		sql  string
		want int
	}{{`SELECT 1`, server}, {`ALTER DATABASE ` + root.Config().Database + ` CONNECTION LIMIT 7`, 7}} {
		must.Exec(t, root, limit.sql)
		c, err := CountConnections(t.Context(), pool)
		if err != nil || c.Limit != limit.want || c.Used < 2 || c.Used > limit.want || c.Free() != limit.want-c.Used {
			t.Errorf("after %s: %+v, %v; want a limit of %d, with these two sessions in use", limit.sql, c, err, limit.want)
		}
	}
}

// The checks of a start share a session, and see changes that were made between them.
func TestChecksShareASession(t *testing.T) {
	database := localtest.Database(t)
	proxy, proxied := localtest.NewCutter(t, database)
	s := &Session{URL: proxied}
	defer s.Close()
	pid := func() (n uint32, name string) {
		t.Helper()
		err := s.use(t.Context(), func(conn *pgx.Conn) error {
			n = conn.PgConn().PID()
			return conn.QueryRow(t.Context(), `SELECT current_setting('application_name')`).Scan(&name)
		})
		must.OK(t, err)
		return n, name
	}
	dangers := func() (found []string) {
		t.Helper()
		list, err := s.FindDangers(t.Context())
		must.OK(t, err)
		for _, d := range list {
			if !d.Warns { // the tests' login creates the roles
				found = append(found, d.Name)
			}
		}
		return found
	}
	root, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, database))
	must.OK(t, err)
	defer root.Close(context.Background())
	first, name := pid()
	if found := dangers(); len(found) != 0 || name != "meterplex start" {
		t.Errorf("before the first migration: %v in a session of %q", found, name)
	}
	logins := Logins{Migrates: proxied, Works: proxied, Session: s}
	if n, err := MigrateAs(t.Context(), logins, slog.Default()); n == 0 || err != nil {
		t.Fatal(n, err)
	}
	before := proxy.Opened.Load()
	if n, err := MigrateAs(t.Context(), logins, slog.Default()); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if opened := proxy.Opened.Load() - before; opened != 1 {
		t.Errorf("the migrations and the grants of a later start open %d sessions besides", opened)
	}
	must.Exec(t, root, `ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY`)
	if found := dangers(); !slices.Equal(found, []string{"row_security"}) {
		t.Errorf("after the migrations: %v", found)
	}
	if last, _ := pid(); last != first {
		t.Errorf("the session %d became %d", first, last)
	}
	// A session that the server has ended is opened again.
	must.Exec(t, root, `SELECT pg_terminate_backend($1, 60000)`, first)
	if found := dangers(); !slices.Equal(found, []string{"row_security"}) {
		t.Errorf("after its end: %v", found)
	}
	if last, _ := pid(); last == first {
		t.Error("the session did not end")
	}
}
