package postgres

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/migrations"
)

func TestStatementsOfMigrationsAreMarked(t *testing.T) {
	const begin, end = statementBegin + "\n", statementEnd + "\n"
	for sql, want := range map[string]string{
		"-- +goose Up\n-- why; how\n\nA;\nB\n  b; -- c\n":                         "-- +goose Up\n-- why; how\n\n" + begin + "A;\n" + end + begin + "B\n  b; -- c\n" + end,
		"-- +goose Up\nA -- a;\n-- inside\n\n;\nB;":                               "-- +goose Up\n" + begin + "A -- a;\n-- inside\n\n;\n" + end + begin + "B;\n" + end,
		"-- +goose NO TRANSACTION\n-- +goose Up\nA;\n" + begin + "B;\nb;\n" + end: "-- +goose NO TRANSACTION\n-- +goose Up\n" + begin + "A;\n" + end + begin + "B;\nb;\n" + end,
	} {
		if got := markStatements(sql); got != want {
			t.Errorf("%q is marked as %q, want %q", sql, got, want)
		}
	}
	names, err := fs.Glob(markedFiles{migrations.FS}, "*.sql")
	if err != nil || len(names) < 45 {
		t.Fatal(names, err)
	}
	unmarked := strings.NewReplacer(begin, "", end, "")
	for _, name := range names {
		raw, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		marked, err := fs.ReadFile(markedFiles{migrations.FS}, name)
		if err != nil || strings.TrimSpace(unmarked.Replace(string(marked))) != strings.TrimSpace(unmarked.Replace(string(raw))) {
			t.Errorf("%s is changed by more than marks: %v", name, err)
		}
	}
}

// An unfinished statement is not lost.
func TestAnUnfinishedMigrationIsRefused(t *testing.T) {
	url := localtest.Migrated(t, Migrate)
	_, err := migrateURL(t.Context(), url, laterRelease("CREATE TABLE whole ();\nCREATE TABLE half ()"), nil, 1)
	if err == nil || !strings.Contains(err.Error(), "StatementEnd") {
		t.Errorf("the migration ends with %v", err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var made int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_class WHERE relname IN ('whole', 'half')`).Scan(&made); err != nil || made != 0 {
		t.Errorf("%d of its tables are made, %v", made, err)
	}
}
