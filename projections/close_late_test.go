package projections_test

import (
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// retry retries the failed dead letter of an event.
func (f *closeFixture) retry(id string) {
	f.Helper()
	f.must(f.deciding.retryNow(f.tenant, f.deciding.lettersByEvent(f.tenant, events.StatusFailed)[id]))
	f.drain(f.deciding.executing)
}

// A rejected event that is retried behind the cut is late, although it was recorded before: its verdict, a parked one, and one whose fold is retried
// are not in the figures, and the close does not wait for their dead letters.
func TestP8_AVerdictOfARetryBehindTheCutIsLate(t *testing.T) {
	f := closeFixtureOf(newRebuildFixture(t))
	for name, folds := range map[string]func(*closeFixture){
		"folded": func(f *closeFixture) { f.drain(f.validating, f.aggregating, f.lettering) },
		"parked": func(f *closeFixture) { f.flow() },
		"parked twice": func(f *closeFixture) {
			f.flow()
			f.retry("a")
			f.flow()
		},
		"folded by a retry": func(f *closeFixture) {
			f.flow()
			f.retry("a")
			f.drain(f.aggregating, f.lettering)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.useTenant(newID())
			f.subscribe(f.tenant, may, grant("calls", domain.ResetMonthly)) // and not "panics"
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
			f.drain(f.validating)
		}, (*closeFixture).flow, "1 LATE_USAGE 5/1 PENDING"},
		"known and folded": {func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.drain(f.validating)
		}, func(f *closeFixture) { f.drain(f.aggregating) }, "1 LATE_USAGE 5/1 PENDING"},
		"known and not folded": {func(f *closeFixture) {
			f.record("folded", "calls", 3)
			f.drain(f.validating, f.aggregating)
			f.record("late", "panics", 5)
			f.drain(f.validating)
		}, func(*closeFixture) {}, "1 LATE_USAGE 3/1 PENDING, 1 LATE_USAGE 5/1 PENDING"},
		"made and not folded": {func(*closeFixture) {}, func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.drain(f.validating)
		}, "1 LATE_USAGE 5/1 PENDING"},
		"made and folded": {func(*closeFixture) {}, func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.drain(f.validating, f.aggregating)
		}, "1 LATE_USAGE 5/1 PENDING"},
		"made and fails": {func(f *closeFixture) { f.record("folded", "calls", 3) }, func(f *closeFixture) {
			f.record("late", "panics", 5)
			f.flow()
		}, "1 LATE_USAGE 3/1 PENDING, 1 LATE_USAGE 5/1 PENDING"},
	} {
		t.Run(name, func(t *testing.T) {
			f.newTenant()
			f.record("a", "panics", 1)
			f.drain(f.validating, f.aggregating)
			f.lateUsage(events.LateUsageAdjust)
			between := &flippingStore{PeriodStore: frozen, flip: func() { c.between(f) }}
			f.periods.Store = between
			closing := f.request()
			f.drain(f.validating, f.aggregating)
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
		batch = append(batch, usageEvent(f.tenant, fmt.Sprint(i), "panics", 1, may))
	}
	f.append(batch...)
	f.drain(f.validating, f.aggregating)
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
