package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/infra/local/localtest"
)

// openStore makes a migrated database with a log and a store on it.
func openStore(t testing.TB) (*Store, *Log, *pgxpool.Pool, string) {
	url := localtest.Migrated(t, Migrate)
	s, l, pool := openStoreAt(t, url)
	return s, l, pool, url
}

func openStoreAt(t testing.TB, url string) (*Store, *Log, *pgxpool.Pool) {
	l, pool := openLogAt(t, url)
	return NewStore(pool, l, StoreConfig{}), l, pool
}
