package projections_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// Rows that differ from the log are not frozen.
func TestP8_FiguresThatDriftAreNotFrozen(t *testing.T) {
	f := newCloseFixture(t)
	owner, err := pgx.Connect(t.Context(), f.url)
	f.must(err)
	defer func() { _ = owner.Close(context.Background()) }()
	exec := func(sql string) { f.must(second(owner.Exec(t.Context(), sql))) }
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
	f.deployFold(largeTwice, foldLargeTwice)
	r := f.rebuilt(commands.StartRebuild{Projection: projections.ProjectionUsage})
	f.check()
	f.want("the difference before the promotion", f.proposed(r.ID), "calls 1 18 tokens 1 7")
	for n, want := range []string{
		"1 LATE_USAGE 8/1 PENDING, 1 REBUILD 18/0 PENDING, 1 REBUILD 7/0 PENDING",
		"1 LATE_USAGE 8/1 PENDING, 1 REBUILD 18/0 PENDING, 1 REBUILD 7/0 PENDING, 1 REBUILD -18/0 PENDING, 1 REBUILD -7/0 PENDING",
		"1 LATE_USAGE 8/1 PENDING, 1 REBUILD 18/0 PENDING, 1 REBUILD 7/0 PENDING, 1 REBUILD -18/0 PENDING, 1 REBUILD -7/0 PENDING, 1 REBUILD 18/0 PENDING, 1 REBUILD 7/0 PENDING",
	} {
		if n%2 == 0 {
			f.must(f.promote(r))
		} else {
			f.must(f.rollBack(r))
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
	if logic := f.text(`SELECT logic FROM period_snapshots WHERE tenant_id = $1 AND snapshot = 2`, f.tenant); c.Snapshot != 2 || logic != largeTwice {
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
	late := &commands.LateReconciles{Periods: f.periods, Logger: slog.New(slog.DiscardHandler)}
	look := func(sagas int) {
		f.Helper()
		f.must(late.Look(t.Context()))
		f.must(late.Look(t.Context()))
		f.want("reconciliations", f.text(`SELECT count(*)::text FROM sagas WHERE kind = $1 AND ended_at IS NULL`, commands.SagaReconcile), fmt.Sprint(sagas))
		f.reconcile()
	}
	f.record("early", "calls", 6)
	f.flow()
	look(0) // the first fold counts it as the log does
	f.deployFold(largeTwice, foldLargeTwice)
	late.Periods = f.periods
	f.must(f.promote(f.rebuilt(commands.StartRebuild{Projection: projections.ProjectionUsage})))
	look(1) // that of the flip
	look(0) // no line differs
	f.check()
	const flipped = "1 LATE_USAGE 6/1 PENDING, 1 REBUILD 16/0 PENDING"
	f.want("adjustments behind the flip", f.adjusted(), flipped)

	f.record("large", "calls", 8)
	f.record("small", "calls", 2)
	f.drain(f.validating)
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

// proposed returns the features of the tenant's lines that a promotion changes, each with the snapshot of its closed period and the adjustment.
func (f *closeFixture) proposed(rebuildID uuid.UUID) string {
	f.Helper()
	d, err := f.reads.Diff(context.Background(), rebuild.DiffQuery{RebuildID: rebuildID, TenantID: f.tenant, Limit: 10, Totals: true})
	f.must(err)
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

// A period is closed by the fold that is live. Behind a rollback the adjustments bring its lines to what the former fold counts, late usage included.
func TestP8_ARollbackBehindACloseIsAdjusted(t *testing.T) {
	f := newCloseFixture(t)
	f.deployFold(largeTwice, foldLargeTwice)
	f.record("a", "calls", 10)
	f.flow()
	r := f.rebuilt(commands.StartRebuild{Projection: projections.ProjectionUsage})
	f.must(f.promote(r))
	f.reconcile()
	f.close()
	f.want("lines", f.lines(), "calls 20/1")
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 8)
	f.record("small", "calls", 2)
	f.flow()
	f.must(f.rollBack(r))
	f.reconcile()
	f.check()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 8/1 PENDING, 1 LATE_USAGE 2/1 PENDING, 1 REBUILD -10/0 PENDING")
}

// A flip between the two computations is noticed: the figures of the log are computed again.
func TestP8_AFlipDuringACloseIsNoticed(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.flow()
	f.deployFold(largeTwice, foldLargeTwice)
	r := f.rebuilt(commands.StartRebuild{Projection: projections.ProjectionUsage})
	flipping := &flippingStore{PeriodStore: f.periods.Store, flip: func() { f.must(f.promote(r)) }}
	f.periods.Store = flipping
	c := f.request(domain.MissingRebuilds)
	f.flow()
	if s := f.advance(c.ID); s.State != domain.SagaCompleted || flipping.runs != 2 {
		t.Fatalf("the close is %s after %d computations: %s", s.State, flipping.runs, s.LastError)
	}
	f.want("lines", f.lines(), "calls 20/1")
	f.want("logic", f.text(`SELECT logic FROM period_snapshots WHERE tenant_id = $1`, f.tenant), largeTwice)
	f.reconcile()
	f.checkEquation()
	f.want("adjustments", f.adjusted(), "")
}

// flippingStore flips a generation behind the first computation of figures.
type flippingStore struct {
	commands.PeriodStore
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
