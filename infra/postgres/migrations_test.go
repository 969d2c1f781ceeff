package postgres

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// An unfinished statement is not lost.
func TestAnUnfinishedMigrationIsRefused(t *testing.T) {
	url := localtest.Migrated(t, Migrate)
	_, err := migrateURL(t.Context(), url, laterRelease("CREATE TABLE whole ();\nCREATE TABLE half ()"), nil, 1)
	if err == nil || !strings.Contains(err.Error(), "StatementEnd") {
		t.Errorf("the migration ends with %v", err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	must.OK(t, err)
	defer conn.Close(t.Context())
	var made int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_class WHERE relname IN ('whole', 'half')`).Scan(&made); err != nil ||
		made != 0 {
		t.Errorf("%d of its tables are made, %v", made, err)
	}
}

// A migrated database vacuums the log by the settings that decision 0009 measured. A setting that a migration drops or
// misspells shows years later, when one vacuum writes the whole log again.
func TestTheLogIsVacuumedAsDecided(t *testing.T) {
	text, err := os.ReadFile("../../docs/decisions/0009-cost-as-the-log-grows.md")
	must.OK(t, err)
	var decided []string
	for _, setting := range regexp.MustCompile(`(autovacuum_\w+) = (\d+)[,)]`).FindAllStringSubmatch(string(text), -1) {
		decided = append(decided, setting[1]+"="+setting[2])
	}
	if want := 7; len(decided) != want {
		t.Fatalf("decision 0009 names the settings %v, want %d", decided, want)
	}
	conn, err := pgx.Connect(t.Context(), localtest.Migrated(t, Migrate))
	must.OK(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	var got []string
	must.OK(t, conn.QueryRow(t.Context(), `SELECT reloptions FROM pg_class WHERE oid = 'event_log_rows'::regclass`).Scan(&got))
	got = slices.DeleteFunc(got, func(setting string) bool { return !strings.HasPrefix(setting, "autovacuum_") })
	slices.Sort(got)
	slices.Sort(decided)
	if !slices.Equal(got, decided) {
		t.Errorf("the log is vacuumed with %v, decision 0009 says %v", got, decided)
	}
}
