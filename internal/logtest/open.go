package logtest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// Open opens the log of a migrated database until the test ends, with a pool of its own.
func Open(t testing.TB, url string, change ...func(*eventlog.Config)) (*eventlog.Log, *pgxpool.Pool) {
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	cfg := eventlog.Config{
		Producer: events.Producer{Service: "meterplex", Instance: "test", Commit: "x"},
		// A slow machine must not cause refusals: tests of refusals set their own bound.
		LongestWait: time.Hour,
		Written:     localtest.CheckPayloads(t).Written,
	}
	for _, f := range change {
		f(&cfg)
	}
	l, err := eventlog.New(t.Context(), pool, cfg)
	must.OK(t, err)
	t.Cleanup(l.Close)
	return l, pool
}
