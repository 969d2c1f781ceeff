package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
)

// AppendOne appends an event of a tenant to the log of a database. TestMain sets it: the event log
// imports this package.
var AppendOne func(ctx context.Context, pool *pgxpool.Pool, tenant uuid.UUID) (events.Position, error)

// openPool makes a migrated database, and a pool of the service's sessions on it.
func openPool(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	url := localtest.Migrated(t, Migrate)
	pool, err := Open(t.Context(), Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, url
}

func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not so within 2 min: " + what)
		}
	}
}
