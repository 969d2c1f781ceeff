package periods_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
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

// TestKeptPlansOfACloseReadNoWholeTable: the statements of a close are planned once by each session. A plan from when the tables were empty
// must be right when they are large.
func TestKeptPlansOfACloseReadNoWholeTable(t *testing.T) {
	tier.AtSize(t)
	f := newCloseFixture(t)
	seen := &statements{keeping: map[*pgx.Conn]bool{}}
	traced, err := postgres.Open(t.Context(), postgres.Config{URL: f.URL, Tracer: localtest.RoundTrips(seen.see)})
	f.Must(err)
	t.Cleanup(traced.Close)
	f.periods = f.periodsOf(store.New(traced, f.EventLog, store.Config{}))
	f.record("a", "calls", 1)
	f.record("dead", "unknown", 2) // is rejected, so that the open dead letters are read
	f.record("stuck", "panics", 3) // fails
	f.flow()
	f.advance(f.request("dead_letters").ID)

	if n := len(seen.list); n < 15 {
		t.Fatalf("found %d statements only: %q", n, seen.list)
	}
	keeping, err := postgres.Open(t.Context(), postgres.Config{URL: f.URL, KeepPlans: true})
	f.Must(err)
	t.Cleanup(keeping.Close)
	conn, err := keeping.Acquire(t.Context())
	f.Must(err)
	defer conn.Release()
	for _, sql := range seen.list {
		plan := localtest.Plan(t, conn.Conn(), sql)
		if strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s\nreads a whole table:\n%s", sql, plan)
		}
	}
}

// The period of the close at size.
const (
	closeEvents = 20_000
	closeLate   = 1000 // late verdicts
	closeLines  = 200  // features
)

// lockedFor measures how long a transaction of the store holds its locks.
type lockedFor struct {
	billing.PeriodStore
	log, held time.Duration
}

func (s *lockedFor) FiguresOfLog(ctx context.Context, c domain.Closing) (domain.Figures, error) {
	began := time.Now()
	defer func() { s.log += time.Since(began) }()
	return s.PeriodStore.FiguresOfLog(ctx, c)
}

func (s *lockedFor) FreezePeriod(ctx context.Context, tenant uuid.UUID, decide func(billing.FreezeTx) error) error {
	var began time.Time
	defer func() { s.held += time.Since(began) }()
	return s.PeriodStore.FreezePeriod(ctx, tenant, func(tx billing.FreezeTx) error {
		began = time.Now()
		return decide(tx)
	})
}

// The close of a large period: how fast its verdicts are read, and how long the head is held with late verdicts behind the cut.
func TestACloseAtSize(t *testing.T) {
	tier.AtSize(t)
	z := NewSized(t)
	f := closeFixtureOf(RebuildsOf(z.Pipeline))
	f.useTenant(z.Tenant)
	var features []string
	var grants []domain.Grant
	for i := range closeLines {
		features = append(features, fmt.Sprint("f", i))
		grants = append(grants, Grant(features[i], domain.ResetMonthly))
	}
	f.Must(
		Second(
			f.Pool.Exec(
				t.Context(),
				`INSERT INTO features (lookup_key, name, type, unit, group_by) SELECT f, f, 'METERED', '', '{}' FROM unnest($1::text[]) f`,
				features,
			),
		),
	)
	f.grant(grants...)
	z.Write(Written{From: 0, Events: closeEvents, Run: 1000, Rejects: 1 << 30, Features: features, Vacuum: true})
	f.lateUsage(events.LateUsageAdjust)
	c := f.request()
	for n := range closeLate / 100 {
		var late []events.Pending
		for i := range 100 {
			late = append(late, Usage(f.tenant, fmt.Sprint("late ", n, " ", i), features[i%len(features)], 1, May))
		}
		f.Append(late...)
	}
	f.Drain(f.Validating, f.Aggregating)
	measured := &lockedFor{PeriodStore: f.periods.Store}
	f.periods.Store = measured
	if s := f.advance(c.ID); s.State != domain.SagaCompleted {
		t.Fatalf("the close is %s %v %s", s.State, s.Missing, s.LastError)
	}
	var lines int
	f.Must(pgx.BeginFunc(t.Context(), f.Pool, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), `SELECT sum(event_count)::int FROM period_lines WHERE tenant_id = $1`, f.tenant).Scan(&lines)
	}))
	if lines != closeEvents {
		t.Errorf("%d events are frozen, want %d", lines, closeEvents)
	}
	t.Logf("%d verdicts in %s: %.0f/s; held %s with %d lines and %d late", closeEvents, measured.log,
		float64(closeEvents)/measured.log.Seconds(), measured.held, closeLines, closeLate)
	f.checkEquation()
}
