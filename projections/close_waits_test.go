package projections_test

import (
	"context"
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

// The validator ends the dead letter of a retried event before the aggregator folds the verdict: a close waits for the fold, and reports no drift.
func TestP8_ACloseWaitsForTheVerdictOfARetry(t *testing.T) {
	f := newCloseFixture(t)
	d := &history{pipelineFixture: f.pipelineFixture, tenant: f.tenant}
	f.record("a", "calls", 5)
	waiting := f.read(events.TopicUsageRaw, f.partition, f.checkpoint(events.GroupValidator, f.partition))
	d.withholdBy(waiting[len(waiting)-1])
	f.flow()
	c := f.request()
	f.waits(c, domain.MissingLetters)
	f.must(f.deciding.retryNow(f.tenant, f.deciding.lettersByEvent(f.tenant, events.StatusFailed)["a"]))
	f.drain(f.deciding.executing)
	f.waits(c, domain.MissingRetries)
	f.drain(f.validating)
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
	tx, err := f.pool.Begin(ctx)
	f.must(err)
	f.must(f.log.LockHeads(ctx, eventlog.In(tx), []int16{f.partition}))
	var c commands.RequestedClose
	done := make(chan error, 1)
	go func() {
		var err error
		c, err = f.periods.Close(ctx, commands.Request{By: billing}, commands.ClosePeriod{TenantID: f.tenant, PeriodKey: "2026-05", Reason: "test"})
		done <- err
	}()
	f.until(func() bool { return f.lockWaiters() > 0 })
	at, err := f.log.AppendTx(ctx, tx, []events.Pending{usageEvent(f.tenant, "a", "calls", 5, may)})
	f.must(err)
	f.must(tx.Commit(ctx))
	f.must(<-done)
	if c.CutPosition.Number <= at[0].Number {
		t.Errorf("the cut is %s, behind it is usage at %s", c.CutPosition, at[0])
	}
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 5/1")
	f.want("adjustments", f.adjusted(), "")
	if failed := f.deciding.failed(f.tenant); len(failed) > 0 {
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
	f.append(correction(f.tenant, "a1", "calls", "a", 7).Pending, correction(f.tenant, "b1", "calls", "b", -1).Pending)
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
