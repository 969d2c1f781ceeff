package projections_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/internal/tier"
)

// statements collects the distinct statements that run on a pool in transactions that keep their plans.
type statements struct {
	mu      sync.Mutex
	keeping map[*pgx.Conn]bool
	list    []string
}

func (s *statements) see(conn *pgx.Conn, sent []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sql := range sent {
		text := strings.ToUpper(strings.TrimSpace(sql))
		switch {
		case strings.HasSuffix(sql, postgres.KeepPlansSQL()):
			s.keeping[conn] = true
		case text == "COMMIT" || text == "ROLLBACK":
			s.keeping[conn] = false
		case s.keeping[conn] && !strings.HasPrefix(text, "RELEASE ") && !slices.Contains(s.list, sql):
			s.list = append(s.list, sql)
		}
	}
}

// TestKeptPlansOfACloseReadNoWholeTable: the statements of a close are planned once by each session. A plan from when the tables were empty must
// be right when they are large.
func TestKeptPlansOfACloseReadNoWholeTable(t *testing.T) {
	tier.AtSize(t)
	f := newCloseFixture(t)
	seen := &statements{keeping: map[*pgx.Conn]bool{}}
	traced, err := postgres.Open(t.Context(), postgres.Config{URL: f.url, Tracer: localtest.RoundTrips(seen.see)})
	f.must(err)
	t.Cleanup(traced.Close)
	f.periods = f.periodsOf(store.New(traced, f.log, store.Config{}))
	f.record("a", "calls", 1)
	f.record("dead", "unknown", 2) // is rejected, so that the open dead letters are read
	f.record("stuck", "panics", 3) // fails
	f.flow()
	f.advance(f.request("dead_letters").ID)

	if n := len(seen.list); n < 15 {
		t.Fatalf("found %d statements only: %q", n, seen.list)
	}
	keeping, err := postgres.Open(t.Context(), postgres.Config{URL: f.url, KeepPlans: true})
	f.must(err)
	t.Cleanup(keeping.Close)
	conn, err := keeping.Acquire(t.Context())
	f.must(err)
	defer conn.Release()
	for _, sql := range seen.list {
		plan := localtest.Plan(t, conn.Conn(), sql)
		if strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s\nreads a whole table:\n%s", sql, plan)
		}
	}
}
