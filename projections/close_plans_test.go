package projections_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// statements collects the distinct statements that run on a pool in transactions that keep their plans.
type statements struct {
	mu      sync.Mutex
	keeping map[*pgx.Conn]bool
	list    []string
}

func (s *statements) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.see(conn, q.SQL)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) TraceBatchStart(ctx context.Context, conn *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		s.see(conn, q.SQL)
	}
	return ctx
}

func (s *statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (s *statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (s *statements) see(conn *pgx.Conn, sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// TestKeptPlansOfACloseReadNoWholeTable: the statements of a close are planned once by each session. A plan from when the tables were empty must
// be right when they are large.
func TestKeptPlansOfACloseReadNoWholeTable(t *testing.T) {
	f := newCloseFixture(t)
	seen := &statements{keeping: map[*pgx.Conn]bool{}}
	traced, err := postgres.Open(t.Context(), postgres.Config{URL: f.url, Tracer: seen})
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
