package node

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// A start is refused if row level security is off.
func TestAStartIsRefusedWithoutRowSecurity(t *testing.T) {
	url := localtest.Migrated(t, postgres.Migrate)
	db, err := postgres.OwnerDB(url)
	must.OK(t, err)
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `ALTER TABLE dead_letter_events NO FORCE ROW LEVEL SECURITY`); err != nil {
		t.Fatal(err)
	}
	err = (&Servers{Logger: slog.Default()}).prepareDatabase(t.Context(), config.Config{DatabaseURL: url})
	if err == nil || !strings.Contains(err.Error(), "row_security: row level security of dead_letter_events is not forced") {
		t.Error(err)
	}
}
