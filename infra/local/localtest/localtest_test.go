package localtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

func TestEachTestHasItsOwnDatabase(t *testing.T) {
	for _, name := range []string{"one", "two"} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, localtest.Database(t))
			// Fails in the second database if it is the first one.
			must.Exec(t, conn, `CREATE TABLE here (id int)`)
			var super, createRole bool
			err := conn.QueryRow(t.Context(), `SELECT rolsuper, rolcreaterole FROM pg_roles WHERE rolname = current_user`).Scan(&super, &createRole)
			if err != nil || super || !createRole {
				t.Fatalf("superuser %v, createrole %v, %v", super, createRole, err)
			}
		})
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must.OK(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}
