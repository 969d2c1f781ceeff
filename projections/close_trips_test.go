package projections_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// lockedTrips counts the round trips of each transaction of a pool from the answer to its lock on a head to its COMMIT.
type lockedTrips struct {
	mu   sync.Mutex
	open map[*pgx.Conn][]string // the statements of each round trip since the lock
	held [][]string             // of each transaction
}

func (c *lockedTrips) trip(conn *pgx.Conn, statements []string) {
	sql := strings.Join(statements, ";\n")
	c.mu.Lock()
	defer c.mu.Unlock()
	list, locked := c.open[conn]
	switch {
	case locked:
		c.open[conn] = append(list, sql)
		if strings.EqualFold(sql, "commit") {
			c.held = append(c.held, c.open[conn])
			delete(c.open, conn)
		}
	case strings.Contains(sql, "FROM log_heads") && strings.Contains(sql, "FOR UPDATE"):
		c.open[conn] = []string{}
	}
}

// While a close holds the head of its partition, ingest of all the partition's tenants waits. The COPY of the events, which is not counted here, is
// one more round trip.
func TestACloseHoldsTheHeadForFewRoundTrips(t *testing.T) {
	f := newCloseFixture(t)
	seen := &lockedTrips{open: map[*pgx.Conn][]string{}}
	traced, err := postgres.Open(t.Context(), postgres.Config{URL: f.url, Tracer: localtest.RoundTrips(seen.trip)})
	f.must(err)
	t.Cleanup(traced.Close)
	f.periods = f.periodsOf(store.New(traced, f.log, store.Config{}))
	f.record("a", "calls", 1)
	f.flow()
	f.advance(f.request().ID)
	_, err = f.periods.Close(t.Context(), commands.Request{By: billing, Idempotency: commands.Idempotency{Key: "k"}},
		commands.ClosePeriod{TenantID: f.tenant, PeriodKey: "2026-04", Reason: "test"})
	f.must(err)
	if len(seen.held) != 3 {
		t.Fatalf("%d transactions locked a head, want a request, its freeze and another request: %q", len(seen.held), seen.held)
	}
	for i, c := range []struct {
		name string
		most int
	}{
		{"request", 3},                         // its offboarding; the writes with the start of the saga; COMMIT
		{"freeze", 4},                          // its conditions; the rows; the writes; COMMIT
		{"request with an Idempotency-Key", 5}, // the look-up and the answer as well
	} {
		if got := len(seen.held[i]); got > c.most {
			t.Errorf("the %s holds the head for %d round trips, want at most %d:\n%s", c.name, got, c.most, strings.Join(seen.held[i], "\n---\n"))
		}
	}
}
