package postgres

import (
	"context"
	"database/sql"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/migrations"
)

// before makes a database with the migrations up to one, and somebody who reads a
// table for as long as the test lets him.
func before(t *testing.T, version int64, table string) (url string, db *sql.DB, letGo func()) {
	t.Helper()
	url = localtest.Database(t)
	db, err := OwnerDB(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	reader, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(`LOCK TABLE ` + table + ` IN ACCESS SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	letGo = func() { _ = reader.Rollback() }
	t.Cleanup(letGo)
	return url, db, letGo
}

// A migration that waits for a long read keeps other reads waiting for 2 s at most,
// and comes again by itself.
func TestMigrationBehindALongReadStopsNoReaders(t *testing.T) {
	t.Parallel()
	url, db, letGo := before(t, 10, "withheld_records")
	done := make(chan error, 1)
	applied := 0
	go func() {
		n, err := Migrate(t.Context(), url)
		applied = n
		done <- err
	}()
	longest := time.Duration(0)
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		began := time.Now()
		var n int
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		err := db.QueryRowContext(ctx, `SELECT count(*) FROM withheld_records`).Scan(&n)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(began))
	}
	if longest < 200*time.Millisecond || longest > 3500*time.Millisecond {
		t.Errorf("a read waited %v behind the migration, which gives up after 2 s", longest)
	}
	letGo()
	if err := <-done; err != nil || applied != 1 {
		t.Fatalf("%d migrations were applied: %v", applied, err)
	}
}

// A lock that is never had ends a migration's tries.
func TestMigrationThatNeverGetsItsLockIsToldSo(t *testing.T) {
	t.Parallel()
	url, _, _ := before(t, 10, "withheld_records")
	var told strings.Builder
	n, err := migrate(t.Context(), url, slog.New(slog.NewTextHandler(&told, nil)), 2)
	if sqlState(err) != lockNotHad || n != 0 || strings.Count(told.String(), "level=WARN") != 1 {
		t.Errorf("%d applied, %v, told %q", n, err, told.String())
	}
}

// What was withheld after it was read has failed for nobody who can do something.
func TestOutboxShowsWhatWasWithheldLateAsPublished(t *testing.T) {
	t.Parallel()
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usage(tenant, "a", 1), usage(tenant, "b", 1))
	partition := events.PartitionOf(tenant)
	for _, sql := range []string{`UPDATE relay_cursors SET position = 2 WHERE partition = $1 AND $2::uuid IS NOT NULL`,
		`INSERT INTO withheld_records VALUES ($1, 1, 1, $2, gen_random_uuid(), 'x', now(), false), ($1, 2, 1, $2, NULL, 'x', now(), true)`} {
		if _, err := pool.Exec(t.Context(), sql, partition, tenant); err != nil {
			t.Fatal(err)
		}
	}
	var seen string
	if err := pool.QueryRow(t.Context(), `SELECT string_agg(status, ' ' ORDER BY position) FROM outbox_events WHERE partition = $1`, partition).Scan(&seen); err != nil || seen != "failed published" {
		t.Errorf("%q, %v", seen, err)
	}
}
