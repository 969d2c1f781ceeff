package periods_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	. "github.com/meterplex/meterplex/projections/projectionstest"
)

// The validator ends the dead letter of a retried event before the aggregator folds the verdict: a close waits for the fold, and reports no drift.
func TestP8_ACloseWaitsForTheVerdictOfARetry(t *testing.T) {
	f := newCloseFixture(t)
	d := &History{Pipeline: f.Pipeline, Tenant: f.tenant}
	f.record("a", "calls", 5)
	waiting := f.Read(events.TopicUsageRaw, f.partition, f.Checkpoint(events.GroupValidator, f.partition))
	d.WithholdBy(waiting[len(waiting)-1])
	f.flow()
	c := f.request()
	f.waits(c, domain.MissingLetters)
	f.Must(f.deciding.RetryNow(f.tenant, f.deciding.LettersByEvent(f.tenant, events.StatusFailed)["a"]))
	f.Drain(f.deciding.Executing)
	f.waits(c, domain.MissingRetries)
	f.Drain(f.Validating)
	f.waits(c, domain.MissingAggregation)
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 5/1")
	f.want("adjustments", f.adjusted(), "")
}

// The cut is the position of the request, taken under the head's lock: usage whose transaction is before that of the request counts, although the
// request arrived first.
func TestP8_TheCutIsTakenUnderTheLockOfTheHead(t *testing.T) {
	f := newCloseFixture(t)
	ctx := context.Background()
	tx, err := f.Pool.Begin(ctx)
	f.Must(err)
	f.Must(f.EventLog.LockHeads(ctx, eventlog.In(tx), []int16{f.partition}))
	var c commands.RequestedClose
	done := make(chan error, 1)
	go func() {
		var err error
		c, err = f.periods.Close(ctx, commands.Request{By: Billing}, commands.ClosePeriod{TenantID: f.tenant, PeriodKey: "2026-05", Reason: "test"})
		done <- err
	}()
	f.Until(func() bool { return f.LockWaiters() > 0 })
	at, err := f.EventLog.AppendTx(ctx, tx, []events.Pending{Usage(f.tenant, "a", "calls", 5, May)})
	f.Must(err)
	f.Must(tx.Commit(ctx))
	f.Must(<-done)
	if c.CutPosition.Number <= at[0].Number {
		t.Errorf("the cut is %s, behind it is usage at %s", c.CutPosition, at[0])
	}
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 5/1")
	f.want("adjustments", f.adjusted(), "")
	if failed := f.deciding.Failed(f.tenant); len(failed) > 0 {
		t.Errorf("refused: %+v", failed)
	}
}

// Late verdicts that are folded before the freeze are no part of the figures.
func TestP8_LateVerdictsBeforeTheFreezeAreAdjustments(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.record("b", "calls", 20)
	f.flow()
	c := f.request()
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 5)
	f.Append(Correction(f.tenant, "a1", "calls", "a", 7).Pending, Correction(f.tenant, "b1", "calls", "b", -1).Pending)
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 30/2")
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 PENDING, 1 CORRECTION -3/0 PENDING, 1 RETRACTION -20/-1 PENDING")
	f.check()
}

// A verdict that is late for a snapshot, and made after its reopening, is no adjustment: the next snapshot counts it.
func TestP8_AVerdictAfterTheReopeningIsAVoidAdjustment(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.close()
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 5)
	f.reopen()
	f.flow()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 VOID")
	f.close()
	f.want("lines", f.lines(), "calls 15/2")
	f.check()
}

// retry retries the failed dead letter of an event.
func (f *closeFixture) retry(id string) {
	f.Helper()
	f.Must(f.deciding.RetryNow(f.tenant, f.deciding.LettersByEvent(f.tenant, events.StatusFailed)[id]))
	f.Drain(f.deciding.Executing)
}

// A rejected event that is retried behind the cut is late, although it was recorded before: its verdict, a parked one, and one whose fold is retried
// are not in the figures, and the close does not wait for their dead letters.
func TestP8_AVerdictOfARetryBehindTheCutIsLate(t *testing.T) {
	f := closeFixtureOf(NewRebuilds(t))
	for name, folds := range map[string]func(*closeFixture){
		"folded": func(f *closeFixture) { f.Drain(f.Validating, f.Aggregating, f.Lettering) },
		"parked": func(f *closeFixture) { f.flow() },
		"parked twice": func(f *closeFixture) {
			f.flow()
			f.retry("a")
			f.flow()
		},
		"folded by a retry": func(f *closeFixture) {
			f.flow()
			f.retry("a")
			f.Drain(f.Aggregating, f.Lettering)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.useTenant(NewID())
			f.Subscribe(f.tenant, May, Grant("calls", domain.ResetMonthly)) // and not "panics"
			f.record("b", "calls", 1)
			f.record("a", "panics", 5) // is rejected
			f.flow()
			c := f.request()
			f.grant()
			f.retry("a")
			folds(f)
			f.ends(c)
			f.want("lines", f.lines(), "calls 1/1")
			f.want("adjustments", f.adjusted(), "1 RETRY 5/1 PENDING")
		})
	}
}

// Late verdicts that fail, that are made or that are not folded yet when the figures by the rows are computed are subtracted as far as the rows have
// them: the first comparison agrees.
func TestP8_LateVerdictsBetweenTheComputations(t *testing.T) {
	f := newCloseFixture(t)
	frozen := f.periods.Store
	for name, c := range map[string]struct {
		before, between func(*closeFixture)
		adjusted        string
	}{
		"known and fails": {func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.Drain(f.Validating)
		}, (*closeFixture).flow, "1 LATE_USAGE 5/1 PENDING"},
		"known and folded": {func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.Drain(f.Validating)
		}, func(f *closeFixture) { f.Drain(f.Aggregating) }, "1 LATE_USAGE 5/1 PENDING"},
		"known and not folded": {func(f *closeFixture) {
			f.record("folded", "calls", 3)
			f.Drain(f.Validating, f.Aggregating)
			f.record("late", "panics", 5)
			f.Drain(f.Validating)
		}, func(*closeFixture) {}, "1 LATE_USAGE 3/1 PENDING, 1 LATE_USAGE 5/1 PENDING"},
		"made and not folded": {func(*closeFixture) {}, func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.Drain(f.Validating)
		}, "1 LATE_USAGE 5/1 PENDING"},
		"made and folded": {func(*closeFixture) {}, func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.Drain(f.Validating, f.Aggregating)
		}, "1 LATE_USAGE 5/1 PENDING"},
		"made and fails": {func(f *closeFixture) { f.record("folded", "calls", 3) }, func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.flow()
		}, "1 LATE_USAGE 3/1 PENDING, 1 LATE_USAGE 5/1 PENDING"},
	} {
		t.Run(name, func(t *testing.T) {
			f.newTenant()
			f.record("a", "panics", 1)
			f.Drain(f.Validating, f.Aggregating)
			f.lateUsage(events.LateUsageAdjust)
			between := &flippingStore{PeriodStore: frozen, flip: func() { c.between(f) }}
			f.periods.Store = between
			closing := f.request()
			f.Drain(f.Validating, f.Aggregating)
			c.before(f)
			if s := f.advance(closing.ID); s.State != domain.SagaCompleted || between.runs != 1 {
				t.Fatalf("the close is %s after %d computations: %s", s.State, between.runs, s.LastError)
			}
			f.want("lines", f.lines(), "panics 1/1")
			f.want("adjustments", f.adjusted(), c.adjusted)
			f.check()
		})
	}
}

// Of a feature with more verdicts than one statement reads, those that failed are not in the figures, whether late or not.
func TestP8_FailedVerdictsOfALargeFigureAreNotFrozen(t *testing.T) {
	f := newCloseFixture(t)
	var batch []events.Pending
	for i := range 130 {
		batch = append(batch, Usage(f.tenant, fmt.Sprint(i), "panics", 1, May))
	}
	f.Append(batch...)
	f.Drain(f.Validating, f.Aggregating)
	f.record("bad", "panics", 10)
	f.flow()
	f.lateUsage(events.LateUsageAdjust)
	c := f.request(domain.MissingLetters)
	f.record("late", "panics", 100)
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "panics 130/130")
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 100/1 PENDING")
}
