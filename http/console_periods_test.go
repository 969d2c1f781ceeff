package http_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

// TestConsole_P8_PeriodsAreClosedAndReopened: figures, hashes and charges are those of the API, digit for digit.
func TestConsole_P8_PeriodsAreClosedAndReopened(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.priced()
	a, other := w.newAccount("A"), w.newAccount("B")
	w.accept(a, old("one", 9007199254740991), old("two", 2))
	w.accept(other, old("one", 4711))
	w.fold()
	key, _ := lastMonth()
	b, at := w.signIn(bootstrap), "/console/tenants/"+a.id+"/periods"
	b.shows(b.open(at), key, "OPEN")
	page := b.open(at + "/" + key)
	b.shows(page, "live figures", "9007199254740993", "no frozen line")
	b.hides(page, "4711")
	b.problemShown(b.act(page, at+"/"+key+"/close", "the month is over", url.Values{"despite": {"everything"}}), 400, "despite_invalid", `value="the month is over"`)
	page = b.twice(page, at+"/"+key+"/close", "the month is over", url.Values{"despite": {"rebuilds"}})
	b.shows(page, "CLOSING", "/console/sagas/", "Done: Close the period.")
	w.once(events.PeriodCloseRequested, 1)
	w.fold()
	w.runSagas()
	page = b.open(at + "/" + key)
	read := w.want(200, call{method: "GET", path: periodsOf(a) + "/" + key, key: bootstrap})
	b.shows(page, "CLOSED", read["figuresHash"].(string), read["logicHash"].(string), "9007199254740993")
	charges := w.want(200, call{method: "GET", path: periodsOf(a) + "/" + key + "/charges", key: bootstrap})
	b.shows(page, charges["totals"].([]any)[0].(map[string]any)["decimal"].(string), "billable amounts")
	lines := b.open(at + "/" + key + "/lines.csv")
	exported := w.do(call{method: "GET", path: periodsOf(a) + "/" + key + "/export?format=csv", key: bootstrap})
	if lines.status != 200 || string(lines.body) != string(exported.body) || !strings.Contains(lines.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("the file is %d %s, and the export %s", lines.status, lines.body, exported.body)
	}
	whole := b.open(at + "/" + key + "/period.json?snapshot=1")
	if !strings.Contains(string(whole.body), `"figuresHash":"`+read["figuresHash"].(string)) {
		t.Errorf("the file is %d %s", whole.status, whole.body)
	}
	page = b.twice(page, at+"/"+key+"/reopen", hostile, nil)
	b.shows(page, "OPEN", "Done: Reopen the period.")
	w.once(events.PeriodReopened, 1)
	b.twice(page, at+"/"+key+"/close", "again", nil) // another state of the page: another close
	w.once(events.PeriodCloseRequested, 2)
	w.fold()
	w.runSagas()
	page = b.open(at + "/" + key)
	b.shows(page, "snapshot 1")
	earlier := b.open(at + "/" + key + "?snapshot=1")
	b.shows(earlier, read["figuresHash"].(string), "snapshot 2")
	present := time.Now().UTC().Format("2006-01")
	b.problemShown(b.act(b.open(at+"/"+present), at+"/"+present+"/close", "too early", nil), 409, "period_not_ended")
	if got := b.open(at + "/" + key + "?snapshot=x"); got.status != 400 {
		t.Errorf("a snapshot x gives %d", got.status)
	}
	if got := b.open(at + "/2026-13"); got.status != 400 && got.status != 404 {
		t.Errorf("a period that does not exist gives %d", got.status)
	}
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

func (w *testService) adjustmentStates(a *account) []string {
	return w.adjustmentsAt("/api/v1/adjustments?tenantId="+a.id, "amount", "state")
}

// TestConsole_P8_AdjustmentsAreDecidedOneByOne: each button decides its own row, once.
func TestConsole_P8_AdjustmentsAreDecidedOneByOne(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a, other := w.adjusted("A"), w.adjusted("B")
	ids := w.adjustmentsAt("/api/v1/adjustments?tenantId="+a.id, "id")
	b, list := w.signIn(bootstrap), "/console/adjustments?tenantId="+a.id
	page := b.open(list)
	b.shows(page, `<td class="number">-7</td>`, `<td class="number">-5</td>`, "PENDING", "fixA")
	b.hides(page, other.id, "fixB")
	b.shows(b.open(list+"&kind=CORRECTION"), "fixA")
	b.hides(b.open(list+"&kind=CORRECTION"), "undoA")
	approved := b.twice(page, "/console/adjustments/"+ids[0]+"/approve", hostile, nil)
	b.shows(approved, "APPROVED", hostileShown, "Done: Approve.")
	w.once(events.AdjustmentDecided, 1)
	w.same("after the approval", w.adjustmentStates(a), []string{"-7 APPROVED", "-5 PENDING"})
	b.problemShown(b.act(page, "/console/adjustments/"+ids[0]+"/waive", "too late", nil), 409, "adjustment_decided")
	b.twice(page, "/console/adjustments/"+ids[1]+"/waive", "goodwill", nil)
	w.once(events.AdjustmentDecided, 2)
	w.same("after the waiver", w.adjustmentStates(a), []string{"-7 APPROVED", "-5 WAIVED"})
	w.same("of another tenant", w.adjustmentStates(other), []string{"-7 PENDING", "-5 PENDING"})
	decisions := w.want(200, call{method: "GET", path: "/api/v1/events?subject=meterplex.billing.adjustment.decided&tenantId=" + a.id, key: bootstrap})["data"].([]any)
	w.same("the reason in the log", decisions[0].(map[string]any)["payload"].(map[string]any)["reason"], hostile)
}

// TestConsole_P8_ABulkDecidesTheAdjustmentsThatItShowed: those, or none of them.
func TestConsole_P8_ABulkDecidesTheAdjustmentsThatItShowed(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a, other := w.adjusted("A"), w.adjusted("B")
	ids := w.adjustmentsAt("/api/v1/adjustments?tenantId="+a.id, "id")
	b, at := w.signIn(bootstrap), "/console/adjustments/decision"
	key, _ := lastMonth()
	b.shows(b.open(at), "Choose a tenant")
	page := b.open(at + "?tenantId=" + a.id + "&periodKey=" + key)
	b.shows(page, "<strong>2</strong>", "<strong>-12</strong>", "fixA", "undoA")
	b.hides(page, "fixB")
	w.same("after the preview", w.adjustmentStates(a), []string{"-7 PENDING", "-5 PENDING"})
	approve := url.Values{"decision": {"approve"}}
	w.want(200, call{"POST", "/api/v1/adjustments/" + ids[0] + "/waive", bootstrap, nil, `{"reason":"meanwhile"}`})
	stale := b.act(page, at, "all of them", approve)
	b.problemShown(stale, 409, "adjustment_decided", "<strong>1</strong>", "<strong>-5</strong>", `value="all of them"`)
	w.same("after the refusal", w.adjustmentStates(a), []string{"-7 WAIVED", "-5 PENDING"})
	if got := b.form(stale, at).Get("ids"); got != ids[1] {
		t.Errorf("the form that is shown again decides %q instead of %q", got, ids[1])
	}
	w.accept(a, correction("later", "oneA", 2)) // is not decided with the others
	w.fold()
	before := w.events(events.AdjustmentDecided)
	done := b.twice(stale, at, "all of them", approve)
	b.shows(done, "Done: Decide these adjustments.", "later")
	w.same("events", w.events(events.AdjustmentDecided), before+1)
	w.once(events.AdjustmentDecided, 1)
	if got := strings.Join(w.adjustmentStates(a), " "); got != "-7 WAIVED -5 APPROVED -1 PENDING" {
		t.Errorf("the adjustments are %s", got)
	}
	w.same("of another tenant", w.adjustmentStates(other), []string{"-7 PENDING", "-5 PENDING"})
}
