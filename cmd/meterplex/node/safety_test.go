package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/infra/local/folder"
	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/infra/postgres"
)

// TestStartErrorsNameTheRemedy: an error that prevents the start contains advice.
func TestStartErrorsNameTheRemedy(t *testing.T) {
	_, away := pgconn.Connect(t.Context(), "postgres://u:hidden-canary@127.0.0.1:1/d")
	given, own := &Servers{}, &Servers{database: &local.Postgres{}}
	for _, c := range []struct {
		err  error
		want string
	}{
		{given.ofDatabase(fmt.Errorf("reaching the database: %w", away)), "DATABASE_URL, DATABASE_MIGRATE_URL"},
		{given.ofDatabase(fmt.Errorf("migrating: %w", &pgconn.PgError{Code: "42501"})), "docs/how-to/database-logins.md"},
		{given.ofDatabase(fmt.Errorf("x: %w", &postgres.RolesNotGranted{Login: "app", Roles: []string{postgres.WorkerRole}, Major: 18,
			Migrates: "app"})),
			"Run as a superuser:\n  GRANT meterplex_worker TO \"app\" WITH SET TRUE;"},
		{advised(fmt.Errorf("start: %w", folder.ErrInUse), "x"), "METERPLEX_DATA_DIR"},
		{advised(localkafka.ErrNoJava, "set KAFKA_BROKERS"), "\nOr set KAFKA_BROKERS"},
	} {
		if text := c.err.Error(); !strings.Contains(text, c.want) || strings.Contains(text, "hidden-canary") {
			t.Errorf("%s: %q is missing", text, c.want)
		}
	}
	if err := own.ofDatabase(away); err != away {
		t.Errorf("of an embedded server: %v", err)
	}
	if err := given.ofDatabase(errors.New("x")); err.Error() != "x" || given.ofDatabase(nil) != nil {
		t.Errorf("of something else: %v", err)
	}
}
