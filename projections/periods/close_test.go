package periods_test

import (
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
)

// P8: the figures of several features under several subscriptions are frozen as known at the cut, by the log and by the rows.
func TestP8_ACloseFreezesTheFiguresAsKnownAtTheCut(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.record("b", "tokens", 5)
	f.Append(Correction(f.tenant, "b1", "tokens", "b", 4).Pending)
	f.flow()
	f.grant() // another subscription
	f.record("c", "calls", 7)
	f.record("before", "calls", 100) // no verdict yet
	c := f.request()
	f.record("after", "calls", 1000)
	f.waits(c, domain.MissingAggregation)
	f.Drain(f.Validating)
	f.waits(c, domain.MissingAggregation)
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 117/3 tokens 4/1")
	f.want("late usage is rejected", fmt.Sprint(f.deciding.Failed(f.tenant)[0].Code), "period_closed")
	again := f.request()
	if !again.Known || again.ID != c.ID || again.Snapshot != 1 || again.State != domain.StateClosed || again.CutPosition != c.CutPosition {
		t.Errorf("a second request: %+v", again)
	}
	// An operator's retry of late usage is an adjustment.
	f.retry("after")
	f.flow()
	f.want("adjustments", f.adjusted(), "1 RETRY 1000/1 PENDING")
	f.check()
}

// The cut divides the events of one transaction's neighbours exactly, decided inline or later.
func TestP8_TheCutIsExactForUsageThatIsValidatedInline(t *testing.T) {
	l := NewInline(NewDatabase(t))
	s := PipelineOf(l.Database)
	f := closeFixtureOf(RebuildsOf(s))
	f.useTenant(l.InlineTenant())
	f.grant()
	f.record("behind", "calls", 2)
	if !l.Record(f.tenant, "calls", "a", "b") {
		t.Fatal("usage waits for the validator")
	}
	c := f.request()
	if !l.Record(f.tenant, "calls", "late") {
		t.Fatal("usage waits for the validator")
	}
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 6/5")
	f.lateUsage(events.LateUsageAdjust)
	l.Record(f.tenant, "calls", "c")
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
	f.Append(Correction(f.tenant, "a1", "calls", "a", 7).Pending, Correction(f.tenant, "b1", "tokens", "b", -1).Pending)
	f.record("refused", "calls", 1)
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 5)
	f.Append(Admitted(f.tenant, "consumed", "tokens", 3, May))
	f.lateUsage(events.LateUsageReject)
	f.record("refused too", "calls", 1)
	f.Append(Committed(f.tenant, "job", "tokens", 4))
	f.flow()
	f.want("adjustments", f.adjusted(), "1 CORRECTION -3/0 PENDING, 1 RETRACTION -20/-1 PENDING, 1 LATE_USAGE 5/1 PENDING, 1 LATE_USAGE "+
		"3/1 PENDING, 1 LATE_COMMIT 4/1 PENDING")
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
	f.retry("bad")
	f.waits(c, domain.MissingRetries)
	f.Drain(f.broken, f.Lettering) // fails again
	f.waits(c, domain.MissingLetters)
	f.retry("bad")
	f.Drain(f.Aggregating)
	f.ends(c)
	f.want("lines", f.lines(), "calls 1/1 panics 10/1")
	f.want("adjustments", f.adjusted(), "")
}

// A parked event whose retry is rejected is open no more. If it is retried again behind the cut, and parked once more, it stays late.
func TestP8_ARejectedEventIsLateByItsRetry(t *testing.T) {
	f := newCloseFixture(t)
	d := &History{Pipeline: f.Pipeline, Tenant: f.tenant}
	withhold := func() {
		f.Helper()
		waiting := f.Read(events.TopicUsageRaw, f.partition, f.Checkpoint(events.GroupValidator, f.partition))
		d.WithholdBy(waiting[len(waiting)-1])
		f.flow()
	}
	retry := func() { f.retry("a") }
	f.record("parked", "panics", 1)
	f.flow()
	f.record("a", "unknown", 5)
	withhold()
	retry()
	c := f.request()
	f.flow()
	f.waits(c, domain.MissingLetters) // for the parked verdict only
	retry()                           // behind the cut
	withhold()
	f.grant(Grant("unknown", domain.ResetMonthly))
	f.retry("parked")
	f.Drain(f.Aggregating, f.Lettering)
	retry() // decided behind the freeze
	f.ends(c)
	f.flow()
	f.want("lines", f.lines(), "panics 1/1")
	f.want("adjustments", f.adjusted(), "1 RETRY 5/1 PENDING")
	f.check()
}

// A late verdict that was parked and is folded by a retry while its period closes is in the rows, and not in the frozen figures.
func TestP8_ALateVerdictThatIsRetriedBeforeTheFreezeIsSubtracted(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "panics", 1)
	f.Drain(f.Validating, f.Aggregating)
	f.lateUsage(events.LateUsageAdjust)
	c := f.request()
	f.record("late", "panics", 5)
	f.flow()
	f.retry("late")
	f.flow() // fails once more
	f.retry("late")
	f.Drain(f.Aggregating, f.Lettering)
	f.ends(c)
	f.want("lines", f.lines(), "panics 1/1")
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 PENDING")
}

// Despite open dead letters it closes. A later retry is an adjustment, a discard is not. It waits for running retries.
func TestP8_ACloseDespiteDeadLettersForgetsNone(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 1)
	for i, id := range []string{"retried", "discarded", "running"} {
		f.record(id, "panics", int64(10*(i+1)))
	}
	f.flow()
	letters := f.deciding.LettersByEvent(f.tenant, events.StatusFailed)
	f.Must(f.deciding.RetryNow(f.tenant, letters["running"]))
	f.Drain(f.deciding.Executing)
	c := f.request(domain.MissingLetters)
	f.Drain(f.Validating)
	f.waits(c, domain.MissingAggregation, domain.MissingRetries)
	f.flow()
	f.ends(c)
	f.want("despite", f.text(`SELECT despite::text FROM period_snapshots WHERE tenant_id = $1`, f.tenant), "{dead_letters}")
	f.want("lines", f.lines(), "calls 1/1")
	f.Must(f.deciding.Discard(f.tenant, letters["discarded"]))
	f.Must(f.deciding.RetryNow(f.tenant, letters["retried"]))
	f.Drain(f.deciding.Executing)
	f.want("adjustments", f.adjusted(), "1 RETRY 10/1 PENDING")
	f.check()
	f.Drain(f.broken, f.Lettering)
	f.check() // it failed again
	f.Must(f.deciding.RetryNow(f.tenant, letters["retried"]))
	f.Drain(f.deciding.Executing, f.Aggregating, f.Lettering)
	f.want("adjustments", f.adjusted(), "1 RETRY 10/1 PENDING")
	f.check()
	f.Settle()
	f.reopen()
	f.check()
}

// A late verdict that is parked counts when it is retried; one that is discarded is void.
func TestP8_ParkedAdjustmentsCountOnceOrAreVoid(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "panics", 1)
	f.Drain(f.Validating, f.Aggregating)
	c := f.request()
	f.Drain(f.Validating, f.Aggregating, f.Lettering)
	f.ends(c)
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "panics", 5)
	f.record("later", "panics", 7)
	f.flow()
	f.check()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 PENDING, 1 LATE_USAGE 7/1 PENDING")
	letters := f.deciding.LettersByEvent(f.tenant, events.StatusFailed)
	f.Must(f.deciding.Discard(f.tenant, letters["late"]))
	f.Must(f.deciding.RetryNow(f.tenant, letters["later"]))
	f.Drain(f.deciding.Executing)
	f.check()
	f.Drain(f.Aggregating, f.Lettering)
	f.check()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 VOID, 1 LATE_USAGE 7/1 PENDING")
}

// Decided adjustments of a parked verdict are void once its dead letter is discarded: the event never counts. The adjustments of a snapshot
// that was reopened before stay as they were invoiced.
func TestP8_ADiscardVoidsDecidedAdjustments(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "panics", 1)
	f.Drain(f.Validating, f.Aggregating)
	c := f.request()
	f.Drain(f.Validating, f.Aggregating, f.Lettering)
	f.ends(c)
	f.lateUsage(events.LateUsageAdjust)
	f.record("approved", "panics", 5)
	f.record("waived", "panics", 7)
	f.record("old", "panics", 9)
	f.flow()
	id := `SELECT id::text FROM adjustments WHERE tenant_id = $1 AND source_event_id = $2`
	f.decide(billing.DecisionApprove, f.text(id, f.tenant, "approved"), f.text(id, f.tenant, "old"))
	f.decide(billing.DecisionWaive, f.text(id, f.tenant, "waived"))
	f.want("billable before", f.billable(), "panics frozen 1 approved 14 waived 7 net 1")
	letters := f.deciding.LettersByEvent(f.tenant, events.StatusFailed)
	f.Must(f.deciding.Discard(f.tenant, letters["approved"]))
	f.Must(f.deciding.Discard(f.tenant, letters["waived"]))
	f.check()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 VOID, 1 LATE_USAGE 7/1 VOID, 1 LATE_USAGE 9/1 APPROVED")
	f.want("billable", f.billable(), "panics frozen 1 approved 9 waived 0 net 1")
	f.reopen()
	f.Must(f.deciding.Discard(f.tenant, letters["old"]))
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 5/1 VOID, 1 LATE_USAGE 7/1 VOID, 1 LATE_USAGE 9/1 APPROVED")
	f.close()
	f.check()
	f.want("lines", f.lines(), "panics 1/1")
}

// A reopening voids pending adjustments, also an adjustment whose verdict comes later. The second close counts all.
func TestP8_TheSecondCloseCountsWhatTheReopeningVoided(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 1)
	f.close()
	f.lateUsage(events.LateUsageAdjust)
	f.record("late", "calls", 10)
	f.record("approved", "calls", 100)
	f.flow()
	f.decide(billing.DecisionApprove, f.text(`SELECT id::text FROM adjustments WHERE tenant_id = $1 AND amount = 100`, f.tenant))
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
	f.Append(Correction(f.tenant, "late1", "calls", "late", 9).Pending)
	f.flow()
	f.check()
	f.want("adjustments", f.adjusted(), "1 LATE_USAGE 10/1 VOID, 1 LATE_USAGE 100/1 APPROVED, 1 LATE_USAGE 1000/1 VOID, 2 CORRECTION "+
		"-1/0 PENDING")
}
