package projections_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
)

// kafkaHistory is a closeHistory whose events pass the relay, Kafka and the consumers of an instance, while the history goes on.
type kafkaHistory struct {
	*closeHistory
	pipe *kafkaPipe
}

// step lets one more thing happen.
func (h *kafkaHistory) step(rt *rapid.T) {
	f := h.closeFixture
	switch step := rapid.SampledFrom([]string{"usage", "usage", "usage", "correct", "correct", "close", "freeze", "freeze", "freeze", "reopen", "decide", "policy",
		"retry", "retry", "discard", "flip", "start", "crash", "flow", "flow"}).Draw(rt, "what"); step {
	case "usage":
		for range rapid.IntRange(1, 4).Draw(rt, "n") {
			h.history.record(rt)
		}
	case "retry":
		if failed := f.deciding.failed(f.tenant); len(failed) > 0 {
			letter := rapid.IntRange(0, len(failed)-1).Draw(rt, "letter")
			if h.allowed(f.deciding.retryNow(f.tenant, failed[letter].ID), "dead_letter_not_retryable"); len(f.deciding.failed(f.tenant)) > 0 {
				h.did("retry")
			}
		}
	case "discard":
		if failed := f.deciding.failed(f.tenant); len(failed) > 0 {
			h.allowed(f.deciding.discard(f.tenant, failed[rapid.IntRange(0, len(failed)-1).Draw(rt, "letter")].ID), "dead_letter_has_corrections", "dead_letter_not_discardable")
		}
	case "flip": // while the generation that counts in another way is live, a late verdict is unreconciled
		h.pipe.flowed()
		h.flip()
	case "start":
		h.pipe.start(rapid.Bool().Draw(rt, "mended"), rapid.Bool().Draw(rt, "folds"))
	case "crash":
		if h.pipe.crash != nil {
			h.pipe.crash()
			h.did("crash")
		}
	case "flow":
		h.pipe.flowed()
	default:
		h.decision(rt, step)
	}
}

// finish retries all dead letters by an instance that folds all features, and ends all closes.
func (h *kafkaHistory) finish() {
	if h.pipe.crash != nil {
		h.pipe.crash()
	}
	h.pipe.start(true, true)
	h.finishBy(h.pipe.flowed, h.pipe.flowed)
}

// P8: after each step of any history, whose events pass Kafka and instances that crash meanwhile, the rows are the frozen figures and the adjustments; the
// frozen figures are those of an independent fold, and never change. METERPLEX_TEST_DURATION=10m draws histories for so long.
func TestP8_AnyHistoryOfClosesAddsUpThroughKafka(t *testing.T) {
	tier.AtSize(t)
	localtest.FewChecks(t, 2)
	y := newRebuildFixture(t)
	f := closeFixtureOf(y)
	f.deployFold(largeTwice, foldLargeTwice)
	f.useTenant(y.tenants(1)[0])
	other := f.rebuilt(commands.StartRebuild{Projection: projections.ProjectionUsage})
	f.must(f.promote(other)) // a close waits for a rebuild that is open
	f.must(f.rollBack(other))
	f.reconcile()
	f.periods.Now = func() time.Time { return may.AddDate(0, 4, 0) }
	pipe, done := newKafkaPipe(f), map[string]int{}
	defer func() {
		if pipe.crash != nil {
			pipe.crash()
		}
	}()
	end := time.Now().Add(tier.Duration(t, 0, 0))
	shown := func() bool { return done["freeze"] > 0 && done["crash"] > 0 }
	for round := 0; round == 0 || time.Now().Before(end) || !shown() && round < 10; round++ { // two histories may show neither
		rapid.Check(t, func(rt *rapid.T) { pipe.history(t, rt, other, done) })
	}
	t.Log(done)
	if !shown() {
		t.Error("no period was frozen, or no instance crashed: nothing was shown")
	}
}

// history draws a history of a tenant.
func (p *kafkaPipe) history(t *testing.T, rt *rapid.T, other domain.Rebuild, done map[string]int) {
	f := p.closeFixture
	d := newHistory(f.pipelineFixture)
	d.broken = f.broken
	f.useTenant(d.tenant)
	f.TB = drawing{t, rt}
	defer func() { f.TB = t }()
	h := &kafkaHistory{&closeHistory{closeFixture: f, history: d, other: other, done: done}, p}
	if rapid.Bool().Draw(rt, "adjusts") {
		h.lateUsage(events.LateUsageAdjust)
	}
	p.start(false, true)
	h.begin(rt)
	for range rapid.IntRange(20, 50).Draw(rt, "steps") {
		h.step(rt)
		h.check()
	}
	h.finish()
	h.check()
	h.checkAdjustments()
	for state := range strings.SplitSeq(h.text(`SELECT coalesce(string_agg(state, ' '), '') FROM adjustments WHERE tenant_id = $1`, d.tenant), " ") {
		done[state]++
	}
}

// begin closes May, and lets an adjustment wait for the aggregator.
func (h *kafkaHistory) begin(rt *rapid.T) {
	f := h.closeFixture
	f.record("first", "calls", 10)
	for range 3 {
		h.history.record(rt)
	}
	h.closes = append(h.closes, h.request())
	h.pipe.flowed()
	h.freeze()
	h.check()
	h.pipe.crash()
	h.pipe.start(false, false)
	f.append(correction(f.tenant, "late", "calls", "first", 4).Pending)
	h.pipe.await(f.validating)
	h.check()
}
