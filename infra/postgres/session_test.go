package postgres

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local/localtest"
)

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
		if err != nil {
			t.Fatal(err)
		}
		return n, name
	}
	dangers := func() (found []string) {
		t.Helper()
		list, err := s.FindDangers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			found = append(found, d.Name)
		}
		return found
	}
	root, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, database))
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := root.Exec(t.Context(), `ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY`); err != nil {
		t.Fatal(err)
	}
	if found := dangers(); !slices.Equal(found, []string{"row_security"}) {
		t.Errorf("after the migrations: %v", found)
	}
	if last, _ := pid(); last != first {
		t.Errorf("the session %d became %d", first, last)
	}
	// A session that the server has ended is opened again.
	if _, err := root.Exec(t.Context(), `SELECT pg_terminate_backend($1, 60000)`, first); err != nil {
		t.Fatal(err)
	}
	if found := dangers(); !slices.Equal(found, []string{"row_security"}) {
		t.Errorf("after its end: %v", found)
	}
	if last, _ := pid(); last == first {
		t.Error("the session did not end")
	}
}
