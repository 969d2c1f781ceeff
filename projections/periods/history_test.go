package periods_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
)

// drawing reports failures to rapid, which draws a shorter history that fails.
type drawing struct {
	testing.TB
	rt *rapid.T
}

func (d drawing) Error(args ...any) { d.rt.Fatal(args...) }

func (d drawing) Errorf(format string, args ...any) { d.rt.Fatalf(format, args...) }

func (d drawing) Fatal(args ...any) { d.rt.Fatal(args...) }

func (d drawing) Fatalf(format string, args ...any) { d.rt.Fatalf(format, args...) }

// closeHistory is a history whose periods are closed and reopened, beside a rebuilt generation that counts in another way.
type closeHistory struct {
	*closeFixture
	history *History
	other   domain.Rebuild
	closes  []billing.RequestedClose
	done    map[string]int // counts of occurrences, to see that the test covers them
}

func (h *closeHistory) did(what string) { h.done[what]++ }

// step lets one more thing happen.
func (h *closeHistory) step(rt *rapid.T) {
	switch step := rapid.SampledFrom([]string{"usage", "usage", "usage", "flow", "flow", "correct", "correct",
		"close", "freeze", "freeze", "reopen", "decide", "decide", "policy", "discard", "flip"}).Draw(rt, "what"); step {
	case "usage":
		h.history.AddStep(rt)
	case "flow":
		h.Drain(h.Validating, h.broken)
	case "discard":
		h.Drain(h.Lettering)
		if failed := h.deciding.Failed(h.tenant); len(failed) > 0 {
			err := h.deciding.Discard(h.tenant, rapid.SampledFrom(failed).Draw(rt, "letter").ID)
			h.allowed(err, "dead_letter_has_corrections", "dead_letter_not_discardable")
		}
	case "flip":
		h.Drain(h.broken)
		h.flip()
	default:
		h.decision(rt, step)
	}
}

// decision lets somebody change usage, or decide over periods.
func (h *closeHistory) decision(rt *rapid.T, step string) {
	period := rapid.SampledFrom([]string{"2026-05", "2026-05", "2026-06", "2026-07"}).Draw(rt, "period")
	switch step {
	case "correct":
		h.correct(rt)
	case "close":
		despite := [][]string{nil, {domain.MissingLetters}}[rapid.IntRange(0, 1).Draw(rt, "despite")]
		c, err := h.periods.Close(
			context.Background(),
			commands.Request{By: Billing},
			billing.ClosePeriod{TenantID: h.tenant, PeriodKey: period, Reason: "test", Despite: despite, Early: true},
		)
		h.Must(err)
		if !c.Known {
			h.closes = append(h.closes, c)
		}
	case "freeze":
		h.freeze()
	case "reopen":
		_, err := h.periods.Reopen(context.Background(), commands.Request{By: Billing}, h.tenant, period, "test")
		h.allowed(err, "period_closing", "period_not_closed")
	case "decide":
		in := billing.DecideAdjustments{
			TenantID: h.tenant,
			Decision: rapid.SampledFrom([]string{billing.DecisionApprove, billing.DecisionWaive}).Draw(rt, "decision"),
			Reason:   "test",
			Scope: &events.AdjustmentScope{
				PeriodKey: period,
				Feature:   rapid.SampledFrom([]string{"", "calls"}).Draw(rt, "feature"),
				UpTo:      h.Head(h.tenant),
			},
		}
		decided, err := h.periods.Decide(context.Background(), commands.Request{By: Billing}, in)
		if h.allowed(err, "period_not_closed"); decided.Count > 0 {
			h.did("decide")
		}
	case "policy":
		h.lateUsage(rapid.SampledFrom([]string{events.LateUsageAdjust, events.LateUsageReject}).Draw(rt, "policy"))
	}
}

// allowed fails on errors other than refusals.
func (h *closeHistory) allowed(err error, codes ...string) {
	if no := (*domain.Error)(nil); err != nil && (!errors.As(err, &no) || !slices.Contains(codes, no.Code)) {
		h.Must(err)
	}
}

// freeze advances the closes that are open, by one look each.
func (h *closeHistory) freeze() {
	h.closes = slices.DeleteFunc(h.closes, func(c billing.RequestedClose) bool {
		s := h.advance(c.ID)
		if s.State == domain.SagaDrift {
			h.printLog()
			h.Fatalf("%s drifts: %s", c.PeriodKey, s.LastError)
		}
		if !s.Open() {
			h.did("freeze")
			h.checkFrozen()
		}
		return !s.Open()
	})
}

// correct corrects or retracts usage that was recorded.
func (h *closeHistory) correct(rt *rapid.T) {
	own, _ := h.history.ReadAll()
	var usage []events.Usage
	for _, e := range own {
		if e.Subject == events.UsageRecorded {
			usage = append(usage, Decode[events.Usage](h.Database, e))
		}
	}
	if len(usage) == 0 {
		return
	}
	of := rapid.SampledFrom(usage).Draw(rt, "of")
	h.Append(Correction(h.tenant, NewID().String(), of.Feature, of.EventID, rapid.Int64Range(-20, 100).Draw(rt, "amount")).Pending)
}

// flip promotes the other generation and rolls it back, each with its reconciliation.
func (h *closeHistory) flip() {
	before := h.adjusted()
	h.Must(h.Promote(h.other))
	h.reconcile()
	h.checkEquation()
	h.Must(h.RollBack(h.other))
	h.reconcile()
	h.checkEquation()
	if h.adjusted() != before {
		h.did("flip")
	}
}

// finish retries all dead letters, and ends all closes.
func (h *closeHistory) finish() {
	f := h.closeFixture
	for range 20 {
		f.Settle()
		for _, l := range f.deciding.Failed(f.tenant) {
			if l.Stage != events.StageValidation {
				h.allowed(f.deciding.RetryNow(f.tenant, l.ID), "dead_letter_not_retryable")
			}
		}
		f.Drain(f.deciding.Executing)
		f.Settle()
		if h.freeze(); len(h.closes) == 0 {
			return
		}
	}
	s := h.advance(h.closes[0].ID)
	f.printLog()
	f.Fatalf("a close is %s and waits for %v", s.State, s.Missing)
}

// P8: after each step of any history the rows are the frozen figures and the adjustments; the frozen figures are those of an independent
// fold, and never change.
func TestP8_AnyHistoryOfClosesAddsUp(t *testing.T) {
	localtest.FewChecks(t, 15)
	y := NewRebuilds(t)
	f := closeFixtureOf(y)
	f.deployFold(LargeTwice, FoldLargeTwice)
	f.useTenant(y.Tenants(1)[0])
	other := f.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	f.Must(f.Promote(other)) // a close waits for a rebuild that is open
	f.Must(f.RollBack(other))
	f.reconcile()
	f.periods.Now = func() time.Time { return May.AddDate(0, 4, 0) }
	done := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		d := NewHistory(y.Pipeline)
		d.Broken = f.broken
		f.useTenant(d.Tenant)
		f.TB = drawing{t, rt}
		defer func() { f.TB = t }()
		h := &closeHistory{closeFixture: f, history: d, other: other, done: done}
		if rapid.Bool().Draw(rt, "adjusts") {
			h.lateUsage(events.LateUsageAdjust)
		}
		for range rapid.IntRange(10, 60).Draw(rt, "steps") {
			h.step(rt)
			h.checkEquation()
		}
		h.finish()
		h.check()
		for state := range strings.SplitSeq(h.text(`SELECT coalesce(string_agg(state, ' '), '') FROM adjustments WHERE tenant_id = $1`,
			d.Tenant), " ") {
			done[state]++
		}
	})
	t.Log(done)
	if done["freeze"] == 0 {
		t.Error("no period was frozen: nothing was shown")
	}
}
