package node

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/migrations"
)

// A migration that was interrupted after it took row level security off is completed by the next start, which is no
// longer refused for what that migration restores.
func TestAStartCompletesAMigrationThatLeftRowSecurityOff(t *testing.T) {
	url := localtest.Database(t)
	db, err := postgres.OwnerDB(url)
	must.OK(t, err)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS)
	must.OK(t, err)
	if _, err := provider.UpTo(t.Context(), 44); err != nil {
		t.Fatal(err)
	}
	off := func() {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), `ALTER TABLE dead_letter_events NO FORCE ROW LEVEL SECURITY`); err != nil {
			t.Fatal(err)
		}
	}
	servers, cfg := &Servers{Logger: slog.Default()}, config.Config{DatabaseURL: url}
	off()
	if err := servers.prepareDatabase(t.Context(), cfg); err != nil {
		t.Errorf("the start after an interruption: %v", err)
	}
	off()
	if err := servers.prepareDatabase(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "row_security: row level security of dead_letter_events is not forced") {
		t.Errorf("without a migration that forces it: %v", err)
	}
}
