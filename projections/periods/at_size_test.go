package periods_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/periods"
	"github.com/meterplex/meterplex/projections/query"
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

// fillClosedPeriod writes a closed period of a tenant: 200 lines, and 100,000 adjustments of them, of which every third is approved.
const fillClosedPeriod = `
WITH change AS (INSERT INTO period_changes (tenant_id, position, period_key, snapshot, change, changed_at)
  VALUES ($1, 1, '2026-05', 1, 'close_requested', now()), ($1, 2, '2026-05', 1, 'closed', now())),
snapshot AS (INSERT INTO period_snapshots (tenant_id, period_key, snapshot, cut, frozen_position, frozen_at, logic, logic_hash, figures_hash, lines, despite)
  VALUES ($1, '2026-05', 1, 1, 2, now(), 'usage_aggregates/v1', '', '', 200, '{}')),
line AS (INSERT INTO period_lines (tenant_id, period_key, snapshot, feature, subscription_id, amount, event_count, last_event_at)
  SELECT $1, '2026-05', 1, 'f' || n % 20, md5((n / 20)::text)::uuid, 1000, 10, now() FROM generate_series(0, 199) n),
live AS (INSERT INTO usage_aggregates (generation, tenant_id, feature, period_key, subscription_id, amount, event_count, period_start, period_end, last_event_at, partition, applied_count)
  SELECT 1, $1, 'f' || n % 20, '2026-05', md5((n / 20)::text)::uuid, 1500, 510, '2026-05-01Z', '2026-06-01Z', now(), $2, 510 FROM generate_series(0, 199) n),
moved AS (UPDATE consumer_checkpoints SET position = 100002 WHERE partition = $2)
INSERT INTO adjustments (id, tenant_id, period_key, snapshot, feature, subscription_id, kind, amount, event_count, position, recorded, source_event_id, state)
SELECT gen_random_uuid(), $1, '2026-05', 1, 'f' || n % 20, md5((n % 200 / 20)::text)::uuid, 'LATE_USAGE', 1, 1, n + 3, n + 3, 'e' || n, (ARRAY['PENDING', 'PENDING', 'APPROVED'])[1 + n % 3]
FROM generate_series(0, 99999) n`

// A page of lines reads the adjustments of these lines only, from one index, and no other line's.
func TestAPageOfLinesReadsItsOwnAdjustments(t *testing.T) {
	tier.AtSize(t)
	s := NewPipeline(t)
	tenant := NewID()
	_, err := s.Pool.Exec(t.Context(), fillClosedPeriod, tenant, events.PartitionOf(tenant))
	s.Must(err)
	r := &periods.Reads{DB: query.DB{Pool: s.Pool}}
	q := periods.PeriodQuery{TenantID: tenant, PeriodKey: "2026-05", Limit: 150}
	var all []periods.PeriodLine
	for {
		at := time.Now()
		d, err := r.Period(t.Context(), q)
		s.Must(err)
		t.Logf("%d lines in %s", len(d.Lines), time.Since(at))
		all = append(all, d.Lines...)
		if q.After = d.Next; d.Next == "" {
			break
		}
	}
	var pending, approved int64
	for _, l := range all {
		p, err := l.Pending.Int64()
		s.Must(err)
		a, err := l.Approved.Int64()
		s.Must(err)
		pending, approved = pending+p, approved+a
		if p+a != 500 || l.Frozen != "1000" || l.Net.String() != "1500" || l.Unreconciled.String() != "0" || l.FrozenEventCount != 10 || *l.NetEventCount != 510 {
			t.Errorf("%+v", l)
		}
	}
	if len(all) != 200 || pending != 66_667 || approved != 33_333 {
		t.Errorf("%d lines with %d pending and %d approved", len(all), pending, approved)
	}
	rows, err := s.Pool.Query(t.Context(), `EXPLAIN (ANALYZE, TIMING OFF) `+periods.LinesPage(), tenant, events.PartitionOf(tenant), "2026-05", 1, "", uuid.Nil, 10)
	s.Must(err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	s.Must(err)
	plan := strings.Join(lines, "\n")
	if sums := regexp.MustCompile(`Index Only Scan using adjustments_sums on adjustments a .*\(actual rows=500 loops=10\)`); !sums.MatchString(plan) || strings.Contains(plan, "Scan on adjustments") {
		t.Error(plan)
	}
}

// fillAdjustments writes 200,000 adjustments of 100 tenants: all are pending, but three that are approved.
const fillAdjustments = `
INSERT INTO adjustments (id, tenant_id, period_key, snapshot, feature, subscription_id, kind, amount, event_count, position, recorded, source_event_id, state)
SELECT lpad(to_hex(n), 32, '0')::uuid, md5((n % 100)::text)::uuid, '2026-05', 1, 'calls', md5('s')::uuid, 'LATE_USAGE', 1, 1, n, n, 'e' || n, CASE WHEN n % 80000 = 79999 OR n = 199990 THEN 'APPROVED' ELSE 'PENDING' END
FROM generate_series(1, 200000) n`

// A list of the adjustments of all tenants in a rare state reads these, and no others, also by a plan that does not know the state.
func TestAListOfAdjustmentsInARareStateReadsNoOthers(t *testing.T) {
	tier.AtSize(t)
	s := NewPipeline(t)
	_, err := s.Pool.Exec(t.Context(), fillAdjustments)
	s.Must(err)
	r := &periods.Reads{DB: query.DB{Pool: s.Pool}}
	var found []int64
	for q := (periods.AdjustmentQuery{State: events.AdjustmentApproved, Limit: 2}); ; {
		page, err := r.Adjustments(t.Context(), q)
		s.Must(err)
		for _, a := range page.Data {
			found = append(found, a.Position.Number)
		}
		if q.After = page.Next; page.Next == "" {
			break
		}
	}
	if !slices.Equal(found, []int64{79_999, 159_999, 199_990}) {
		t.Errorf("found the adjustments at %v", found)
	}
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		plan := planOf(s, mode, periods.AdjustmentsInState(), "", events.AdjustmentApproved, "", "", 101, uuid.Nil)
		if !strings.Contains(plan, "adjustments_states") || strings.Contains(plan, "Rows Removed") {
			t.Errorf("%s:\n%s", mode, plan)
		}
	}
}

// planOf returns the plan of a statement after its execution.
func planOf(s *Pipeline, mode, sql string, args ...any) string {
	s.Helper()
	conn, err := s.Pool.Acquire(context.Background())
	s.Must(err)
	defer conn.Release()
	s.Must(Second(conn.Exec(context.Background(), `SELECT set_config('plan_cache_mode', $1, false)`, mode)))
	defer func() { s.Must(Second(conn.Exec(context.Background(), `RESET plan_cache_mode`))) }()
	s.Must(Second(conn.Exec(context.Background(), `PREPARE planned AS `+sql)))
	defer func() { s.Must(Second(conn.Exec(context.Background(), `DEALLOCATE planned`))) }()
	var values []string
	for _, arg := range args {
		values = append(values, fmt.Sprintf("'%v'", arg))
	}
	rows, err := conn.Query(context.Background(), `EXPLAIN (ANALYZE, TIMING OFF) EXECUTE planned (`+strings.Join(values, ", ")+`)`)
	s.Must(err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	s.Must(err)
	return strings.Join(lines, "\n")
}

// The period of the close at size.
const (
	closeEvents = 20_000
	closeLate   = 1000 // late verdicts
	closeLines  = 200  // features
)

// lockedFor measures how long a transaction of the store holds its locks.
type lockedFor struct {
	commands.PeriodStore
	log, held time.Duration
}

func (s *lockedFor) FiguresOfLog(ctx context.Context, c domain.Closing) (domain.Figures, error) {
	began := time.Now()
	defer func() { s.log += time.Since(began) }()
	return s.PeriodStore.FiguresOfLog(ctx, c)
}

func (s *lockedFor) FreezePeriod(ctx context.Context, tenant uuid.UUID, decide func(commands.FreezeTx) error) error {
	var began time.Time
	defer func() { s.held += time.Since(began) }()
	return s.PeriodStore.FreezePeriod(ctx, tenant, func(tx commands.FreezeTx) error {
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
	f.Must(Second(f.Pool.Exec(t.Context(), `INSERT INTO features (lookup_key, name, type, unit, group_by) SELECT f, f, 'METERED', '', '{}' FROM unnest($1::text[]) f`, features)))
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
