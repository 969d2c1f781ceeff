package projections_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/usage"
)

// P8: the figures of several features under several subscriptions are frozen as known at the cut, by the log and by the rows.
func TestP8_ACloseFreezesTheFiguresAsKnownAtTheCut(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.record("b", "tokens", 5)
	f.append(correction(f.tenant, "b1", "tokens", "b", 4).Pending)
	f.flow()
	f.grant() // another subscription
	f.record("c", "calls", 7)
	f.record("before", "calls", 100) // no verdict yet
	c := f.request()
	f.record("after", "calls", 1000)
	f.waits(c, domain.MissingAggregation)
	f.drain(f.validating)
	f.waits(c, domain.MissingAggregation)
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 117/3 tokens 4/1")
	f.want("late usage is rejected", fmt.Sprint(f.deciding.failed(f.tenant)[0].Code), "period_closed")
	again := f.request()
	if !again.Known || again.ID != c.ID || again.Snapshot != 1 || again.State != domain.StateClosed || again.CutPosition != c.CutPosition {
		t.Errorf("a second request: %+v", again)
	}
	// An operator's retry of late usage is an adjustment.
	f.must(f.deciding.retryNow(f.tenant, f.deciding.lettersByEvent(f.tenant, events.StatusFailed)["after"]))
	f.flow()
	f.want("adjustments", f.adjusted(), "1 RETRY 1000/1 PENDING")
	f.check()
}

// The cut divides the events of one transaction's neighbours exactly, judged inline or later.
func TestP8_TheCutIsExactForUsageThatIsValidatedInline(t *testing.T) {
	l := newInlineLog(newLogFixture(t), consume.NewHandover())
	s := newPipelineFixtureOf(l.logFixture)
	f := closeFixtureOf(newRebuildFixtureOf(s))
	f.useTenant(l.inlineTenant())
	f.grant()
	f.record("behind", "calls", 2)
	if !l.record(f.tenant, "calls", "a", "b") {
		t.Fatal("usage waits for the validator")
	}
	c := f.request()
	if !l.record(f.tenant, "calls", "late") {
		t.Fatal("usage waits for the validator")
	}
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 6/5")
	f.lateUsage(events.LateUsageAdjust)
	l.record(f.tenant, "calls", "c")
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 1/1 PENDING")
	f.checkFrozen()
	f.flow()
	f.check()
}

// Late usage is adjusted by the policy at its position; late corrections, retractions and commits in any case.
func TestP8_LateEventsAreAdjustments(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.record("b", "tokens", 20)
	f.record("c", "calls", 30)
	f.close()
	f.append(correction(f.tenant, "a1", "calls", "a", 7).Pending, correction(f.tenant, "b1", "tokens", "b", -1).Pending)
	f.record("refused", "calls", 1)
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 5)
	f.append(admittedEvent(f.tenant, "consumed", "tokens", 3, may))
	f.lateUsage(events.LateUsageReject)
	f.record("refused too", "calls", 1)
	f.append(committedEvent(f.tenant, "job", "tokens", 4))
	f.flow()
	f.want("adjustments", f.adjusted(), "1 CORRECTION -3/0 PENDING, 1 RETRACTION -20/-1 PENDING, 1 LATE_USAGE 5/1 PENDING, 1 LATE_USAGE 3/1 PENDING, 1 LATE_COMMIT 4/1 PENDING")
	f.check()
	f.want("lines", f.lines(), "calls 40/2 tokens 20/1")
}

// A close waits for verdicts that are parked, and that are being retried.
func TestP8_ACloseWaitsForParkedVerdicts(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 1)
	f.record("bad", "panics", 10)
	f.flow()
	c := f.request()
	f.record("bad too", "panics", 100) // behind the cut
	f.flow()
	f.waits(c, domain.MissingLetters)
	f.must(f.deciding.retryNow(f.tenant, f.deciding.lettersByEvent(f.tenant, events.StatusFailed)["bad"]))
	f.drain(f.deciding.executing)
	f.waits(c, domain.MissingRetries)
	f.drain(f.broken, f.lettering) // fails again
	f.waits(c, domain.MissingLetters)
	f.must(f.deciding.retryNow(f.tenant, f.deciding.lettersByEvent(f.tenant, events.StatusFailed)["bad"]))
	f.drain(f.deciding.executing, f.aggregating)
	f.ends(c)
	f.want("lines", f.lines(), "calls 1/1 panics 10/1")
	f.want("adjustments", f.adjusted(), "")
}

// Despite open dead letters it closes, and what is retried later is an adjustment; what is discarded is none. It waits for running retries.
func TestP8_ACloseDespiteDeadLettersForgetsNone(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 1)
	for i, id := range []string{"retried", "discarded", "running"} {
		f.record(id, "panics", int64(10*(i+1)))
	}
	f.flow()
	letters := f.deciding.lettersByEvent(f.tenant, events.StatusFailed)
	f.must(f.deciding.retryNow(f.tenant, letters["running"]))
	f.drain(f.deciding.executing)
	c := f.request(domain.MissingLetters)
	f.drain(f.validating)
	f.waits(c, domain.MissingAggregation, domain.MissingRetries)
	f.flow()
	f.ends(c)
	f.want("despite", f.text(`SELECT despite::text FROM period_snapshots WHERE tenant_id = $1`, f.tenant), "{dead_letters}")
	f.want("lines", f.lines(), "calls 1/1")
	f.must(f.deciding.discard(f.tenant, letters["discarded"]))
	f.must(f.deciding.retryNow(f.tenant, letters["retried"]))
	f.drain(f.deciding.executing)
	f.want("adjustments", f.adjusted(), "1 RETRY 10/1 PENDING")
	f.check()
	f.drain(f.broken, f.lettering)
	f.check() // it failed again
	f.must(f.deciding.retryNow(f.tenant, letters["retried"]))
	f.drain(f.deciding.executing, f.aggregating, f.lettering)
	f.want("adjustments", f.adjusted(), "1 RETRY 10/1 PENDING")
	f.check()
	f.settle()
	f.reopen()
	f.check()
}

// A late verdict that is parked counts when it is retried; one that is discarded is void.
func TestP8_ParkedAdjustmentsCountOnceOrAreVoid(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "panics", 1)
	f.drain(f.validating, f.aggregating)
	c := f.request()
	f.drain(f.validating, f.aggregating, f.lettering)
	f.ends(c)
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "panics", 5)
	f.record("later", "panics", 7)
	f.flow()
	f.check()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 PENDING, 1 LATE_USAGE 7/1 PENDING")
	letters := f.deciding.lettersByEvent(f.tenant, events.StatusFailed)
	f.must(f.deciding.discard(f.tenant, letters["late"]))
	f.must(f.deciding.retryNow(f.tenant, letters["later"]))
	f.drain(f.deciding.executing)
	f.check()
	f.drain(f.aggregating, f.lettering)
	f.check()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 VOID, 1 LATE_USAGE 7/1 PENDING")
}

// A reopening voids what is pending, also an adjustment whose verdict comes later. The second close counts all.
func TestP8_TheSecondCloseCountsWhatTheReopeningVoided(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 1)
	f.close()
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 10)
	f.record("approved", "calls", 100)
	f.flow()
	f.decide(commands.DecisionApprove, f.text(`SELECT id::text FROM adjustments WHERE tenant_id = $1 AND amount = 100`, f.tenant))
	f.record("slow", "calls", 1000) // its verdict comes after the reopening
	r := f.reopen()
	if r.Voided != 1 || r.Approved != 1 || r.Snapshot != 1 {
		t.Errorf("%+v", r)
	}
	f.record("open", "calls", 10000)
	f.flow()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 10/1 VOID, 1 LATE_USAGE 100/1 APPROVED, 1 LATE_USAGE 1000/1 VOID")
	f.check()
	if c := f.close(); c.Snapshot != 2 {
		t.Errorf("%+v", c)
	}
	f.want("lines", f.lines(), "calls 11111/5")
	f.append(correction(f.tenant, "late1", "calls", "late", 9).Pending)
	f.flow()
	f.check()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 10/1 VOID, 1 LATE_USAGE 100/1 APPROVED, 1 LATE_USAGE 1000/1 VOID, 2 CORRECTION -1/0 PENDING")
}

// Rows that differ from the log are not frozen.
func TestP8_FiguresThatDriftAreNotFrozen(t *testing.T) {
	for name, change := range map[string]string{
		"amount": `UPDATE usage_aggregates SET amount = amount + 1 WHERE feature = 'calls'`,
		"count":  `UPDATE usage_aggregates SET event_count = event_count - 1 WHERE feature = 'calls'`,
		"no row": `DELETE FROM usage_aggregates WHERE feature = 'calls'`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newCloseFixture(t)
			f.record("a", "calls", 10)
			f.lateUsage(events.LateUsageAdjust)
			c := f.request()
			f.record("late", "calls", 3)
			f.flow()
			owner, err := pgx.Connect(t.Context(), f.url)
			f.must(err)
			defer func() { _ = owner.Close(context.Background()) }()
			exec := func(sql string) { f.must(second(owner.Exec(t.Context(), sql))) }
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

// A close waits for a rebuild whose scope has the period, unless it was told not to.
func TestP8_ACloseWaitsForAnOpenRebuild(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.flow()
	r := f.start(commands.StartRebuild{Projection: projections.ProjectionUsage, TenantID: f.tenant})
	c := f.request()
	f.flow()
	f.waits(c, domain.MissingRebuilds)
	_, err := f.rebuilds.Abandon(t.Context(), commands.Request{By: operatorKey}, r.ID, "test")
	f.must(err)
	f.ends(c)
	f.want("lines", f.lines(), "calls 10/1")
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

// The hash of the fold's logic depends on how it counts.
func TestP8_TheLogicHashIsThatOfTheFold(t *testing.T) {
	f := newCloseFixture(t)
	f.folds.Usage = f.folds.Usage.With(largeTwice, foldLargeTwice)
	figures := f.folds.PeriodFigures()
	one, err := figures.LogicHash(usage.V1)
	f.must(err)
	two, err := figures.LogicHash(largeTwice)
	f.must(err)
	if one == two || len(one) != 64 {
		t.Errorf("%s %s", one, two)
	}
	if _, err := figures.LogicHash("usage_aggregates/none"); err == nil {
		t.Error("an unknown fold has a hash")
	}
}
