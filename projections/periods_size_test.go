package projections_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/periods"
	"github.com/meterplex/meterplex/projections/query"
)

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
	s := newPipelineFixture(t)
	tenant := newID()
	_, err := s.pool.Exec(t.Context(), fillClosedPeriod, tenant, events.PartitionOf(tenant))
	s.must(err)
	r := &periods.Reads{DB: query.DB{Pool: s.pool}}
	q := periods.PeriodQuery{TenantID: tenant, PeriodKey: "2026-05", Limit: 150}
	var all []periods.PeriodLine
	for {
		at := time.Now()
		d, err := r.Period(t.Context(), q)
		s.must(err)
		t.Logf("%d lines in %s", len(d.Lines), time.Since(at))
		all = append(all, d.Lines...)
		if q.After = d.Next; d.Next == "" {
			break
		}
	}
	var pending, approved int64
	for _, l := range all {
		p, err := l.Pending.Int64()
		s.must(err)
		a, err := l.Approved.Int64()
		s.must(err)
		pending, approved = pending+p, approved+a
		if p+a != 500 || l.Frozen != "1000" || l.Net.String() != "1500" || l.Unreconciled.String() != "0" || l.FrozenEventCount != 10 || *l.NetEventCount != 510 {
			t.Errorf("%+v", l)
		}
	}
	if len(all) != 200 || pending != 66_667 || approved != 33_333 {
		t.Errorf("%d lines with %d pending and %d approved", len(all), pending, approved)
	}
	rows, err := s.pool.Query(t.Context(), `EXPLAIN (ANALYZE, TIMING OFF) `+periods.LinesPage(), tenant, events.PartitionOf(tenant), "2026-05", 1, "", uuid.Nil, 10)
	s.must(err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	s.must(err)
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
	s := newPipelineFixture(t)
	_, err := s.pool.Exec(t.Context(), fillAdjustments)
	s.must(err)
	r := &periods.Reads{DB: query.DB{Pool: s.pool}}
	var found []int64
	for q := (periods.AdjustmentQuery{State: events.AdjustmentApproved, Limit: 2}); ; {
		page, err := r.Adjustments(t.Context(), q)
		s.must(err)
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
		plan := s.planOf(mode, periods.AdjustmentsInState(), "", events.AdjustmentApproved, "", "", 101, uuid.Nil)
		if !strings.Contains(plan, "adjustments_states") || strings.Contains(plan, "Rows Removed") {
			t.Errorf("%s:\n%s", mode, plan)
		}
	}
}

// planOf returns the plan of a statement after its execution.
func (s *pipelineFixture) planOf(mode, sql string, args ...any) string {
	s.Helper()
	conn, err := s.pool.Acquire(context.Background())
	s.must(err)
	defer conn.Release()
	s.must(second(conn.Exec(context.Background(), `SELECT set_config('plan_cache_mode', $1, false)`, mode)))
	defer func() { s.must(second(conn.Exec(context.Background(), `RESET plan_cache_mode`))) }()
	s.must(second(conn.Exec(context.Background(), `PREPARE planned AS `+sql)))
	defer func() { s.must(second(conn.Exec(context.Background(), `DEALLOCATE planned`))) }()
	var values []string
	for _, arg := range args {
		values = append(values, fmt.Sprintf("'%v'", arg))
	}
	rows, err := conn.Query(context.Background(), `EXPLAIN (ANALYZE, TIMING OFF) EXECUTE planned (`+strings.Join(values, ", ")+`)`)
	s.must(err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	s.must(err)
	return strings.Join(lines, "\n")
}
