package postgres

import (
	"database/sql"
	"io/fs"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/migrations"
)

// upTo migrates a database as far as a version.
func upTo(t *testing.T, db *sql.DB, version int64) error {
	t.Helper()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, markedFiles{migrations.FS})
	if err != nil {
		t.Fatal(err)
	}
	_, err = provider.UpTo(t.Context(), version)
	return err
}

// Migration 0045 leaves row level security of dead letters forced wherever it fails, and forces it if an earlier form of
// it, or none, was interrupted.
func TestDeadLettersAreGuardedWhileTheyAreCounted(t *testing.T) {
	t.Parallel()
	_, db, letGo := before(t, 44, "log_heads")
	letGo()
	exec := func(sql string) {
		t.Helper()
		if _, err := db.Exec(sql); err != nil {
			t.Fatal(sql, err)
		}
	}
	check := func(when string) {
		t.Helper()
		var forced bool
		if err := db.QueryRow(`SELECT relforcerowsecurity FROM pg_class WHERE oid = 'dead_letter_events'::regclass`).Scan(&forced); err != nil || !forced {
			t.Errorf("row level security is forced %s: %v, %v", when, forced, err)
		}
	}
	exec(`CREATE TYPE dead_letter_counts AS ENUM ()`) // the table of the counts cannot be made
	if err := upTo(t, db, 45); SQLState(err) != "42710" {
		t.Fatalf("beside a type of the table's name: %v", err)
	}
	check("after a failure")
	exec(`DROP TYPE dead_letter_counts`)
	exec(`ALTER TABLE dead_letter_events NO FORCE ROW LEVEL SECURITY`)
	if err := upTo(t, db, 45); err != nil {
		t.Fatal(err)
	}
	check("after an interruption that left it off")
	var policies string
	if err := db.QueryRow(`SELECT string_agg(polname, ' ' ORDER BY polname) FROM pg_policy WHERE polrelid = 'dead_letter_events'::regclass`).Scan(&policies); err != nil || policies != "own_tenant worker" {
		t.Errorf("the table has the policies %q, %v", policies, err)
	}
}

// A migration without a transaction may be applied, and its process end before that is noted: it is applied again.
func TestMigrationsWithoutATransactionCanBeRepeated(t *testing.T) {
	t.Parallel()
	db, err := OwnerDB(localtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	repeated := 0
	for _, name := range names {
		raw, err := migrations.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(raw), "-- +goose NO TRANSACTION") {
			continue
		}
		version, err := goose.NumericComponent(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := upTo(t, db, version); err != nil {
			t.Fatal(name, err)
		}
		if _, err := db.ExecContext(t.Context(), `DELETE FROM goose_db_version WHERE version_id = $1`, version); err != nil {
			t.Fatal(err)
		}
		if err := upTo(t, db, version); err != nil {
			t.Fatalf("%s a second time: %v", name, err)
		}
		repeated++
	}
	if repeated < 9 {
		t.Errorf("%d migrations have no transaction", repeated)
	}
}
