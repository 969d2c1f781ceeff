package postgres

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// AppendOne appends an event of a tenant to the log of a database. TestMain sets it: the event log
// imports this package.
var AppendOne func(ctx context.Context, pool *pgxpool.Pool, tenant uuid.UUID) (events.Position, error)

// openPool makes a migrated database, and a pool of the service's sessions on it.
func openPool(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	url := localtest.Migrated(t, Migrate)
	pool, err := Open(t.Context(), Config{URL: url})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	return pool, url
}
