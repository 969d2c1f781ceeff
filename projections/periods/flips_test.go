package periods_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

// Rows that differ from the log are not frozen.
func TestP8_FiguresThatDriftAreNotFrozen(t *testing.T) {
	f := newCloseFixture(t)
	owner, err := pgx.Connect(t.Context(), f.URL)
	f.Must(err)
	defer func() { _ = owner.Close(context.Background()) }()
	exec := func(sql string) { f.Must(Second(owner.Exec(t.Context(), sql))) }
	for name, change := range map[string]string{
		"amount": `UPDATE usage_aggregates SET amount = amount + 1 WHERE feature = 'calls'`,
		"count":  `UPDATE usage_aggregates SET event_count = event_count - 1 WHERE feature = 'calls'`,
		"no row": `DELETE FROM usage_aggregates WHERE feature = 'calls'`,
	} {
		t.Run(name, func(t *testing.T) {
			f.newTenant()
			f.record("a", "calls", 10)
			f.lateUsage(events.LateUsageAdjust)
			c := f.request()
			f.record("late", "calls", 3)
			f.flow()
			exec(`DROP TABLE IF EXISTS kept`)
			exec(`CREATE TEMP TABLE kept AS SELECT * FROM usage_aggregates`)
			exec(change)
			if s := f.advance(c.ID); s.State != domain.SagaDrift || s.LastError == "" {
				t.Fatalf("the close is %s %q", s.State, s.LastError)
			}
			f.want("snapshots", f.lines(), "")
			exec(`DELETE FROM usage_aggregates`)
			exec(`INSERT INTO usage_aggregates SELECT * FROM kept`)
			f.ends(c)
			f.want("lines", f.lines(), "calls 10/1")
			f.want("adjustments", f.adjusted(), "1 LATE_USAGE 3/1 PENDING")
		})
	}
}

// A flip changes no frozen line: the difference of each is an adjustment. A close waits for an open rebuild.
func TestP8_AFlipIsAdjusted(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.record("b", "tokens", 3)
	f.record("c", "tokens", 7)
	f.close()
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 8)
	f.flow()
	f.deployFold(LargeTwice, FoldLargeTwice)
	r := f.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	f.check()
	f.want("the difference before the promotion", f.proposed(r.ID), "calls 1 18 tokens 1 7")
	for n, want := range []string{
		"1 LATE_USAGE 8/1 PENDING, 1 REBUILD 18/0 PENDING, 1 REBUILD 7/0 PENDING",
		"1 LATE_USAGE 8/1 PENDING, 1 REBUILD 18/0 PENDING, 1 REBUILD 7/0 PENDING, 1 REBUILD -18/0 PENDING, 1 REBUILD -7/0 PENDING",
		"1 LATE_USAGE 8/1 PENDING, 1 REBUILD 18/0 PENDING, 1 REBUILD 7/0 PENDING, 1 REBUILD -18/0 PENDING, 1 REBUILD -7/0 PENDING, 1 " +
			"REBUILD 18/0 PENDING, 1 REBUILD 7/0 PENDING",
	} {
		if n%2 == 0 {
			f.Must(f.Promote(r))
		} else {
			f.Must(f.RollBack(r))
		}
		f.reconcile()
		f.check()
		f.want(fmt.Sprint("adjustments after flip ", n+1), f.adjusted(), want)
	}
	f.want("lines", f.lines(), "calls 10/1 tokens 10/2")
	f.reopen()
	f.check()
	c := f.close()
	f.want("lines by the new fold", f.lines(), "calls 36/2 tokens 17/2")
	if logic := f.text(`SELECT logic FROM period_snapshots WHERE tenant_id = $1 AND snapshot = 2`, f.tenant); c.Snapshot != 2 ||
		logic != LargeTwice {
		t.Errorf("snapshot %d by %s", c.Snapshot, logic)
	}
	hashes := f.text(`SELECT string_agg(DISTINCT logic_hash, ' ') FROM period_snapshots WHERE tenant_id = $1`, f.tenant)
	if len(hashes) != 2*64+1 {
		t.Errorf("the hashes of two folds are %s", hashes)
	}
}

// Behind a flip the live fold may count late usage in another way than its adjustment does. The difference is an adjustment, once.
func TestP8_LateUsageBehindAFlipIsAdjusted(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.close()
	f.lateUsage(events.LateUsageAdjust)
	late := &billing.LateReconciles{Periods: f.periods}
	look := func(sagas int) {
		f.Helper()
		f.Must(late.Look(t.Context()))
		f.Must(late.Look(t.Context()))
		f.want("reconciliations", f.text(`SELECT count(*)::text FROM sagas WHERE kind = $1 AND ended_at IS NULL`, billing.SagaReconcile),
			fmt.Sprint(sagas))
		f.reconcile()
	}
	f.record("early", "calls", 6)
	f.flow()
	look(0) // the first fold counts it as the log does
	f.deployFold(LargeTwice, FoldLargeTwice)
	late.Periods = f.periods
	f.Must(f.Promote(f.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})))
	look(1) // that of the flip
	look(0) // no line differs
	f.check()
	const flipped = "1 LATE_USAGE 6/1 PENDING, 1 REBUILD 16/0 PENDING"
	f.want("adjustments behind the flip", f.adjusted(), flipped)

	f.record("large", "calls", 8)
	f.record("small", "calls", 2)
	f.Drain(f.Validating)
	look(0) // it is not folded
	f.flow()
	look(1)
	f.check()
	const behind = flipped + ", 1 LATE_USAGE 8/1 PENDING, 1 LATE_USAGE 2/1 PENDING, 1 REBUILD 8/0 PENDING"
	f.want("adjustments of late usage", f.adjusted(), behind)

	f.record("again", "calls", 9)
	f.flow()
	look(1)
	f.check()
	f.want("adjustments of more late usage", f.adjusted(), behind+", 1 LATE_USAGE 9/1 PENDING, 1 REBUILD 9/0 PENDING")
}

// proposed returns the features of the tenant's lines that a promotion changes, each with the snapshot of its closed period and the
// adjustment.
func (f *closeFixture) proposed(rebuildID uuid.UUID) string {
	f.Helper()
	d, err := f.Reads.Diff(context.Background(), rebuild.DiffQuery{RebuildID: rebuildID, TenantID: f.tenant, Limit: 10, Totals: true})
	f.Must(err)
	closed := int64(0)
	var lines []string
	for _, row := range d.Data {
		line := row.Feature + " open"
		if row.ClosedSnapshot != nil {
			line = fmt.Sprint(row.Feature, " ", *row.ClosedSnapshot, " ", *row.Adjustment)
			closed++
		}
		lines = append(lines, line)
	}
	if n := d.Totals.DifferingClosed; n == nil || *n != closed {
		f.Errorf("the totals are %+v, and %d keys are of closed periods", d.Totals, closed)
	}
	return strings.Join(lines, " ")
}

// A period is closed by the fold that is live. Behind a rollback the adjustments bring its lines to the counts of the former fold, late
// usage included.
func TestP8_ARollbackBehindACloseIsAdjusted(t *testing.T) {
	f := newCloseFixture(t)
	f.deployFold(LargeTwice, FoldLargeTwice)
	f.record("a", "calls", 10)
	f.flow()
	r := f.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	f.Must(f.Promote(r))
	f.reconcile()
	f.close()
	f.want("lines", f.lines(), "calls 20/1")
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 8)
	f.record("small", "calls", 2)
	f.flow()
	f.Must(f.RollBack(r))
	f.reconcile()
	f.check()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 8/1 PENDING, 1 LATE_USAGE 2/1 PENDING, 1 REBUILD -10/0 PENDING")
}

// A flip between the two computations is noticed: the figures of the log are computed again.
func TestP8_AFlipDuringACloseIsNoticed(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.flow()
	f.deployFold(LargeTwice, FoldLargeTwice)
	r := f.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	flipping := &flippingStore{PeriodStore: f.periods.Store, flip: func() { f.Must(f.Promote(r)) }}
	f.periods.Store = flipping
	c := f.request(domain.MissingRebuilds)
	f.flow()
	if s := f.advance(c.ID); s.State != domain.SagaCompleted || flipping.runs != 2 {
		t.Fatalf("the close is %s after %d computations: %s", s.State, flipping.runs, s.LastError)
	}
	f.want("lines", f.lines(), "calls 20/1")
	f.want("logic", f.text(`SELECT logic FROM period_snapshots WHERE tenant_id = $1`, f.tenant), LargeTwice)
	f.reconcile()
	f.checkEquation()
	f.want("adjustments", f.adjusted(), "")
}

// flippingStore flips a generation behind the first computation of figures.
type flippingStore struct {
	billing.PeriodStore
	flip func()
	runs int
}

func (s *flippingStore) FiguresOfLog(ctx context.Context, c domain.Closing) (domain.Figures, error) {
	figures, err := s.PeriodStore.FiguresOfLog(ctx, c)
	if s.runs++; s.runs == 1 {
		s.flip()
	}
	return figures, err
}

// Late usage is that of each tenant with a closed period whose live figures are of another fold, under the last flip of these: whatever
// promotions of all tenants, of one, and of one period follow each other, and whichever are rolled back.
func TestP8_LateUsageIsOfThePeriodsThatAnotherFoldCounts(t *testing.T) {
	f := newCloseFixture(t)
	ctx, tenants, closed := t.Context(), []uuid.UUID{NewID(), NewID(), NewID()}, []string{"2026-03", "2026-04"}
	f.Must(Second(f.Pool.Exec(ctx, `INSERT INTO period_snapshots SELECT t, p, 1, 1, 1, now(), 'x', 'x', 'x', 1, '{}'
		FROM unnest($1::uuid[]) t, unnest($2::text[]) p`, tenants, closed)))
	f.Must(Second(f.Pool.Exec(ctx, `INSERT INTO adjustments (id, tenant_id, period_key, snapshot, feature, subscription_id, kind, amount,
		event_count, position, recorded, state)
 SELECT gen_random_uuid(), t, '2026-03', 1, 'calls', t, 'LATE_USAGE', 1, 1, 1, 1, 'PENDING' FROM unnest($1::uuid[]) t`, tenants[:2])))
	f.Must(Second(f.Pool.Exec(ctx, `INSERT INTO projection_generations (projection, generation, fold_version) VALUES ('usage_aggregates',
		101, $1), ('usage_aggregates', 102, $2)`, usage.V1, LargeTwice)))
	random, listed := rand.New(rand.NewPCG(1, 2)), 0
	for round := range 60 {
		f.Must(Second(f.Pool.Exec(ctx, `DELETE FROM projection_pointers WHERE projection = 'usage_aggregates' AND flip >= 1000`)))
		for n := range random.IntN(6) {
			var undone *int
			if random.IntN(4) == 0 {
				undone = new(int)
				*undone = 2000
			}
			f.Must(Second(f.Pool.Exec(ctx, `INSERT INTO projection_pointers (projection, tenant_id, period_key, generation, flip,
				undone_flip, live) VALUES ('usage_aggregates', $1, $2, $3, $4, $5, $5::int IS NULL)`,
				append([]uuid.UUID{uuid.Nil}, tenants...)[random.IntN(4)], append([]string{""}, closed...)[random.IntN(3)],
				101+random.IntN(2), 1000+n, undone)))
		}
		rows, err := f.Pool.Query(ctx, `SELECT t || ' ' || max(l.flip) FROM unnest($1::uuid[]) t CROSS JOIN unnest($2::text[]) p
 JOIN projection_pointers l ON l.projection = 'usage_aggregates' AND l.flip >= 1000 AND l.generation = 102
 AND l.generation = live_generation('usage_aggregates', t, p) AND l.undone_flip IS NULL
  AND l.tenant_id IN (t, '00000000-0000-0000-0000-000000000000') AND l.period_key IN (p, '')
  AND NOT EXISTS (SELECT FROM projection_pointers o WHERE o.projection = l.projection AND o.flip > l.flip AND o.undone_flip IS NULL
   AND o.tenant_id IN (t, '00000000-0000-0000-0000-000000000000') AND o.period_key IN (p, '')) GROUP BY t ORDER BY t`, tenants[:2], closed)
		f.Must(err)
		want, err := pgx.CollectRows(rows, pgx.RowTo[string])
		f.Must(err)
		list, _, err := f.periods.Store.LateUsage(ctx, uuid.Nil)
		f.Must(err)
		var got []string
		for _, l := range list {
			got = append(got, fmt.Sprint(l.TenantID, " ", l.Flip))
		}
		if listed += len(got); !slices.Equal(got, want) {
			t.Fatalf("round %d: late usage of\n%s\nand not of\n%s", round, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if listed < 20 {
		t.Errorf("only %d times late usage", listed)
	}
}
