package postgres

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// The server ends an autovacuum for a session that waits for its table for longer than deadlock_timeout. A migration that
// always gave up sooner would never get the table of a long one.
func TestAMigrationEndsAnAutovacuum(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	server, err := local.StartPostgres(t.Context(), local.PostgresConfig{DataDir: localtest.Folder(t),
		Settings: map[string]string{"autovacuum_naptime": "1s", "shared_buffers": "32MB"}})
	must.OK(t, err)
	defer func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	conn, err := pgx.Connect(t.Context(), server.URL())
	must.OK(t, err)
	defer conn.Close(context.Background())
	must.Exec(t, conn, `CREATE TABLE vacuumed WITH (autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1) AS SELECT n
		FROM generate_series(1, 300000) n;
 DELETE FROM vacuumed WHERE n % 2 = 0`)
	vacuums := func() (runs bool) {
		err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'vacuumed'::regclass
			AND mode = 'ShareUpdateExclusiveLock')`).Scan(&runs)
		return err == nil && runs
	}
	must.Until(t, "an autovacuum of the table", vacuums)
	var told strings.Builder
	files := fstest.MapFS{"0001_next.sql": {Data: []byte("-- +goose Up\nALTER TABLE vacuumed ADD COLUMN next int;")}}
	began := time.Now()
	if n, err := migrateURL(t.Context(), server.URL(), files, slog.New(slog.NewTextHandler(&told, nil)), 12); n != 1 || err != nil {
		t.Errorf("%d applied within %v, %v", n, time.Since(began), err)
	}
	if !strings.Contains(told.String(), LockNotAvailable) {
		t.Error("the autovacuum did not hinder the migration")
	}
}

// unbounded migrates for longer than the settings of the login allow its statements and transactions. Those of the
// address bound it.
func unbounded(l *loginTrial) {
	l.create("$W", `CREATE ROLE $W LOGIN PASSWORD 'p'`, `ALTER ROLE $W SET statement_timeout = '300ms'`)
	if l.major >= 17 {
		l.exec(`ALTER ROLE $W SET transaction_timeout = '300ms'`)
	}
	const cancelled, sleep = "57014", "-- +goose Up\nSELECT pg_sleep(0.7);"
	files := fstest.MapFS{"0001_long.sql": {Data: []byte(sleep)}}
	if n, err := migrateURL(l.Context(), l.url("$W"), files, slog.Default(), 1); n != 1 || err != nil {
		l.Errorf("%d applied, %v", n, err)
	}
	l.exec(`ALTER ROLE $W RESET ALL`)
	files["0002_long.sql"] = &fstest.MapFile{Data: []byte(sleep)}
	for _, parameter := range []string{"statement_timeout=300", "options=-c%20statement_timeout%3D300"} {
		if _, err := migrateURL(l.Context(), l.url("$W")+"&"+parameter, files, slog.Default(), 1); SQLState(err) != cancelled {
			l.Errorf("with %s: %v", parameter, err)
		}
	}
}
