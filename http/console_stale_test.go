package http_test

import (
	"net/url"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// staleForm is a form whose entity changes after its page was displayed.
type staleForm struct {
	page, action string // the action below the page
	more         url.Values
	meanwhile    func()
	code         string
	shows        []string // by the page of the refusal
	done         string   // shown once the action is executed
	subject      events.Subject
	events       int
}

// refusesStale sends the form of a page that was displayed before a change, and once more as the refusal shows it.
func (b *browser) refusesStale(c staleForm) {
	b.Helper()
	page, before := b.open(c.page), b.viaConsole(c.subject)
	c.meanwhile()
	stale := b.act(page, c.action, "as displayed", c.more)
	b.problemShown(stale, 409, c.code, append(c.shows, `value="as displayed"`)...)
	b.once(c.subject, before)
	b.shows(b.twice(stale, c.action, "as displayed", c.more), c.done)
	b.once(c.subject, before+c.events)
}

// TestConsole_AStaleDisplayChangesNothing: the page shows the present state and the reason that was written. From there the action is
// executed once.
func TestConsole_AStaleDisplayChangesNothing(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b, key := w.signIn(bootstrap), ""
	w.accept(a, old("one", 100))
	w.rejections(a, "gone", 3)
	key, _ = lastMonth()
	period := "/console/tenants/" + a.id + "/periods/" + key
	b.refusesStale(staleForm{period, period + "/close", nil, func() { w.accept(a, old("late", 23)); w.fold() },
		"state_changed", []string{`<td class="number">123</td>`}, "CLOSING", events.PeriodCloseRequested, 1})
	w.fold()
	w.runSagas()
	b.refusesStale(staleForm{period, period + "/reopen", nil, func() { w.accept(a, correction("fix", "one", 90)); w.fold() },
		"state_changed", []string{`<td class="number">-10</td>`}, "OPEN", events.PeriodReopened, 1})

	other := w.adjusted("B")
	ids, decision := w.adjustmentsAt("/api/v1/adjustments?tenantId="+other.id, "id"), "/console/adjustments/decision"
	b.refusesStale(staleForm{decision + "?tenantId=" + other.id + "&periodKey=" + key, decision, url.Values{"decision": {"approve"}},
		func() {
			w.want(200, call{"POST", "/api/v1/adjustments/" + ids[0] + "/waive", bootstrap, nil, `{"reason":"meanwhile"}`})
		}, "adjustment_decided", []string{"<strong>1</strong>", "<strong>-5</strong>"}, "Done: Decide these adjustments.",
		events.AdjustmentDecided, 1})
	w.same("the adjustments", w.adjustmentsAt("/api/v1/adjustments?tenantId="+other.id, "amount", "state"),
		[]string{"-7 WAIVED", "-5 APPROVED"})

	bulk := "/console/dead-letters/bulk"
	b.refusesStale(staleForm{bulk + "?action=discard&feature=gone&status=FAILED", bulk + "/discard", nil,
		func() { w.rejections(a, "gone", 1) },
		"state_changed", []string{"<strong>4</strong> dead letters"}, "Done: Discard these dead letters.", events.DeadLetterClosed, 4})

	const plan = "/console/catalogue/plans/basic"
	mine := url.Values{"name": {"Mine"}, "entitlements": {`[{"feature":"api_calls","limit":5}]`}}
	b.refusesStale(staleForm{plan, plan + "/change", mine, func() {
		w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, `{"name":"Changed meanwhile","entitlements":[]}`})
	}, "state_changed", []string{"<dd>Changed meanwhile</dd>"}, "<dd>Mine</dd>", events.PlanDefined, 1})
}

// TestConsole_AnotherDifferenceIsNotPromoted, and a rollback takes back the displayed promotion only.
func TestConsole_AnotherDifferenceIsNotPromoted(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	b, id := w.signIn(bootstrap), w.rebuilt("usage_aggregates", nil)
	at := "/console/rebuilds/" + id
	b.shows(b.open(at+"/diff"), `<strong>33</strong>`, `<strong>69</strong>`, "results, 6 counted", "Largest differences")
	b.shows(b.open(at+"/diff/events?feature=storage&periodKey=lifetime&tenantId="+a.id), "s0", "s2",
		"Explained by events<strong>22</strong>")
	b.refusesStale(staleForm{at + "/diff", at + "/diff/promote", nil, func() {
		w.ingest(a, batch(event("late", map[string]any{"feature": "storage", "amount": 7})))
		w.foldBoth()
		w.same("the figure", w.figure(a), "29")
	}, "state_changed", []string{"<strong>40</strong>"}, "PROMOTED", events.RebuildPromoted, 1})
	b.refusesStale(staleForm{at, at + "/rollback", nil, func() { w.decide(id, "rollback"); w.decide(id, "promote") },
		"state_changed", []string{"PROMOTED"}, "ROLLED_BACK", events.RebuildRolledBack, 1})
	w.same("the figure after the rollback", w.figure(a), "29")
}

// adjusted is an account whose last month is closed and has two pending adjustments: -7 and -5.
func (w *testService) adjusted(name string) *account {
	w.Helper()
	a := w.newAccount(name)
	w.accept(a, old("one"+name, 10), old("two"+name, 5))
	w.closed(a)
	w.accept(a, correction("fix"+name, "one"+name, 3), retraction("undo"+name, "two"+name))
	w.fold()
	return a
}
