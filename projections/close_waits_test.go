package projections_test

import (
	"context"
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
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
	f.must(f.log.LockHeads(ctx, tx, []int16{f.partition}))
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
