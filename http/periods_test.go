package http_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A month is closed, corrected, adjusted, reopened and closed again. Frozen figures stay as they were.
func TestP8_AClosedMonthIsAdjustedAndReopened(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 10), old("u2", 5))
	w.fold()
	key, _ := lastMonth()
	w.same("the list", w.periodStates(a), []string{key + " OPEN <nil>"})
	path := w.closed(a)
	line := []string{"feature", "frozen", "frozenEventCount", "pending", "approved", "waived", "billable", "net", "netEventCount",
		"unreconciled"}
	w.same("closed", w.lines(path, line...), []string{"api_calls 15 2 0 0 0 15 15 2 0"})
	w.accept(a, correction("c1", "u1", 7), retraction("r1", "u2"))
	w.fold()
	w.same("corrected", w.lines(path, line...), []string{"api_calls 15 2 -8 0 0 15 7 1 0"})
	members := []string{"kind", "amount", "eventCount", "snapshot", "sourceEventId", "state", "reason"}
	w.same("adjustments", w.adjustmentsAt(path+"/adjustments", members...), []string{"CORRECTION -3 0 1 c1 PENDING <nil>",
		"RETRACTION -5 -1 1 r1 PENDING <nil>"})
	first := w.adjustmentsAt("/api/v1/adjustments?kind=CORRECTION", "id")[0]
	decided := w.want(200, call{"POST", "/api/v1/adjustments/" + first + "/approve", bootstrap, nil, `{"reason":"agreed"}`})
	w.same("the decision", valuesOf(decided, "count", "amount"), "1 -3")
	w.same("approved", w.lines(path, line...), []string{"api_calls 15 2 -5 -3 0 12 7 1 0"})
	w.refused(w.do(call{"POST", "/api/v1/adjustments/" + first + "/waive", bootstrap, nil, `{"reason":"no"}`}), 409, "adjustment_decided")
	reopened := w.want(200, call{"POST", path + "/reopen", bootstrap, nil, `{"reason":"wrong"}`})
	w.same("the reopening", valuesOf(reopened, "state", "snapshot", "voided", "approved"), "OPEN 1 1 1")
	w.same("void", w.adjustmentsAt(path+"/adjustments?state=VOID", members...),
		[]string{"RETRACTION -5 -1 1 r1 VOID the period was reopened"})
	w.same("reopened", w.lines(path, line...), []string{"api_calls 15 2 0 -3 0 12 <nil> <nil> <nil>"})
	w.same("the list", w.periodStates(a), []string{key + " OPEN 1"})
	w.closed(a)
	w.same("closed again", w.lines(path, line...), []string{"api_calls 7 1 0 0 0 7 7 1 0"})
	w.same("the first snapshot", w.lines(path+"?snapshot=1", line...), []string{"api_calls 15 2 0 -3 0 12 <nil> <nil> <nil>"})
	w.same("the list", w.periodStates(a), []string{key + " CLOSED 2"})
	for _, snapshot := range []string{"", "?snapshot=1", "?snapshot=2"} {
		w.hashed(path + snapshot)
	}
}

// A figure without events is not a frozen line: readers of the answer cannot tell it from a line that only has adjustments, and compute the
// hash without both.
func TestP8_AFigureOfNothingIsNotFrozen(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccount("B")
	w.accept(a, old("u1", 10), retraction("r1", "u1"))
	w.accept(b, old("u1", 10), correction("c1", "u1", 0))
	for account, want := range map[*account]string{a: "0 0 0 0 0", b: "0 1 0 1 0"} {
		path := w.closed(account)
		w.same("the line", w.lines(path, "frozen", "frozenEventCount", "net", "netEventCount", "unreconciled"), []string{want})
		w.hashed(path)
		var lines int
		w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM period_lines WHERE tenant_id = $1`, account.id).Scan(&lines))
		w.same("frozen lines", lines, map[bool]int{true: 0, false: 1}[account == a])
	}
}

// The receipts of usage and of its corrections name the snapshots that count them, and their adjustments.
func TestP8_AReceiptNamesItsSnapshotAndItsAdjustments(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"lateUsage":"ADJUST"}`})
	w.accept(a, old("u1", 10))
	w.fold()
	key, _ := lastMonth()
	receipts := func(want ...string) {
		t.Helper()
		for i, id := range []string{"u1", "c1", "u2"}[:len(want)] {
			r := w.receiptOf(a, id)
			var adjusted []string
			for _, m := range r["adjustments"].([]any) {
				adjusted = append(adjusted, valuesOf(m.(map[string]any), "kind", "amount", "state"))
			}
			w.same(id, fmt.Sprint(r["late"], adjusted, r["frozen"]), want[i])
		}
	}
	receipts("<nil> [] <nil>")
	path := w.closed(a)
	w.accept(a, correction("c1", "u1", 7), old("u2", 5))
	first := "map[periodKey:" + key + " snapshot:1]"
	receipts("<nil> [] "+first, "<nil> [] <nil>", "<nil> [] <nil>")
	w.fold()
	receipts("<nil> [CORRECTION -3 PENDING] "+first, "map[kind:CORRECTION snapshot:1] [CORRECTION -3 PENDING] <nil>",
		"map[kind:LATE_USAGE snapshot:1] [LATE_USAGE 5 PENDING] <nil>")
	w.want(200, call{"POST", path + "/reopen", bootstrap, nil, `{"reason":"r"}`})
	w.closed(a)
	second := strings.Replace(first, "snapshot:1", "snapshot:2", 1)
	receipts("<nil> [CORRECTION -3 VOID] "+second, "map[kind:CORRECTION snapshot:1] [CORRECTION -3 VOID] "+second,
		"map[kind:LATE_USAGE snapshot:1] [LATE_USAGE 5 VOID] "+second)
}

func (w *testService) periodStates(a *account) []string {
	w.Helper()
	return w.adjustmentsAt(periodsOf(a), "periodKey", "state", "snapshot")
}

// hashed computes the hash of frozen figures from the answer, by encoding/json: members in the order of their names.
func (w *testService) hashed(path string) {
	w.Helper()
	got := w.want(200, call{method: "GET", path: path, key: bootstrap})
	type line struct {
		Amount         string      `json:"amount"`
		EventCount     json.Number `json:"eventCount"`
		Feature        string      `json:"feature"`
		SubscriptionID string      `json:"subscriptionId"`
	}
	lines := []line{}
	for _, l := range got["lines"].([]any) {
		m := l.(map[string]any)
		if valuesOf(m, "frozen", "frozenEventCount") != "0 0" {
			lines = append(lines, line{fmt.Sprint(m["frozen"]), m["frozenEventCount"].(json.Number), m["feature"].(string),
				m["subscriptionId"].(string)})
		}
	}
	text, err := json.Marshal(map[string]any{"cut": got["cutPosition"], "lines": lines, "logic": got["logic"],
		"periodKey": got["periodKey"],
		"snapshot":  got["snapshot"], "tenantId": got["tenantId"]})
	w.must(err)
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != got["figuresHash"] {
		w.Errorf("%s: the hash is %v, and that of %s is %x", path, got["figuresHash"], text, sum)
	}
}

func TestP8_ACloseIsRequestedOnce(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 10))
	key, _ := lastMonth()
	request := func(header map[string]string, body string) call {
		return call{"POST", periodsOf(a) + "/" + key + "/close", bootstrap, header, body}
	}
	header := map[string]string{"Idempotency-Key": "k"}
	first := w.do(request(header, `{"reason":"r"}`))
	if location := first.header.Get("Location"); first.status != 202 || location != periodsOf(a)+"/"+key {
		t.Fatalf("%d %s, Location %s", first.status, first.body, location)
	}
	got := w.want(202, request(header, `{"reason":"r"}`))
	w.same("repeated", valuesOf(got, "state", "snapshot", "periodKey", "tenantId"), "CLOSING 1 "+key+" "+a.id)
	again := w.want(200, request(nil, `{"reason":"other"}`))
	w.same("known", again["id"], got["id"])
	w.same("its cut", again["cutPosition"], got["cutPosition"])
	for range 2 { // the second answer is the first one's
		w.want(200, request(map[string]string{"Idempotency-Key": "k2"}, `{"reason":"other"}`))
	}
	w.refused(w.do(request(header, `{"reason":"x"}`)), 422, "idempotency_key_reused")
	period := w.want(200, call{method: "GET", path: periodsOf(a) + "/" + key, key: bootstrap})
	w.same("closing", valuesOf(period, "state", "snapshot", "sagaId", "frozenPosition", "figuresHash", "partial"),
		"CLOSING 1 "+got["id"].(string)+" <nil> <nil> false")
	w.runSagas()
	period = w.want(200, call{method: "GET", path: periodsOf(a) + "/" + key, key: bootstrap})
	w.same("what is missing", period["missing"], []any{"not_aggregated"})
	w.exec(`UPDATE sagas SET state = 'PARTIAL', next_at = now() WHERE id = $1`, got["id"])
	w.same("partial", w.want(200, call{method: "GET", path: periodsOf(a) + "/" + key, key: bootstrap})["partial"], true)
	w.fold()
	w.runSagas()
	w.same("closed", valuesOf(w.want(200, request(nil, `{"reason":"once more"}`)), "state", "snapshot"), "CLOSED 1")
	period = w.want(200, call{method: "GET", path: periodsOf(a) + "/" + key, key: bootstrap})
	w.same("nothing is missing", fmt.Sprint(period["missing"], period["partial"], period["despite"]), "[] false []")
}

// Each is refused, and no event is stored.
func TestBadInputOfPeriods(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccount("B")
	w.accept(a, old("u1", 10), old("u2", 5))
	w.accept(b, old("u1", 10))
	key, _ := lastMonth()
	w.closed(a)
	w.closed(b)
	w.accept(a, correction("c1", "u1", 7), correction("c2", "u2", 7))
	w.accept(b, correction("c1", "u1", 7))
	w.fold()
	ids := w.adjustmentsAt("/api/v1/adjustments?tenantId="+a.id, "id")
	foreign := w.adjustmentsAt("/api/v1/adjustments?tenantId="+b.id, "id")[0]
	w.want(200, call{"POST", "/api/v1/adjustments/" + ids[1] + "/waive", bootstrap, nil, `{"reason":"r"}`})
	w.refuses(t, badInputs(bootstrap, badPeriods, "{tenant}", a.id, "{month}", key, "{present}", now()[:7], "{year}", now()[:4],
		"{pending}",
		ids[0], "{decided}",
		ids[1],
		"{foreign}", foreign, "{position}", w.adjustmentsAt("/api/v1/adjustments?tenantId="+a.id, "position")[1])...)
	w.want(200, call{method: "GET", path: periodsOf(a) + "/9999-11", key: bootstrap}) // the last one whose end can be written
	for tenant, id := range map[string]string{a.id: ids[0], b.id: foreign} {
		w.same("the adjustments", w.adjustmentsAt("/api/v1/adjustments?state=PENDING&tenantId="+tenant, "id"), []string{id})
	}
}

func TestADecisionOfAScopeEndsAtItsPosition(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 10), old("u2", 5), old("u3", 1))
	path := w.closed(a)
	key, _ := lastMonth()
	w.accept(a, correction("c1", "u1", 7), retraction("r1", "u2"), correction("c2", "u3", 2))
	w.fold()
	positions := w.adjustmentsAt(path+"/adjustments", "position")
	decide := func(more string) map[string]any {
		return w.want(200, call{"POST", "/api/v1/adjustments/decide", bootstrap, nil,
			`{"tenantId":"` + a.id + `","periodKey":"` + key + `","decision":"approve","reason":"r",` + more + `}`})
	}
	before := w.stored()
	w.same("a dry run", valuesOf(decide(`"upTo":"`+positions[1]+`","dryRun":true`), "count", "amount", "position"), "2 -8 <nil>")
	w.same("stored by a dry run", w.stored()-before, 0)
	w.same("corrections", valuesOf(decide(`"upTo":"`+positions[1]+`","kind":"CORRECTION"`), "count", "amount"), "1 -3")
	w.same("states", w.adjustmentsAt(path+"/adjustments", "sourceEventId", "state"), []string{"c1 APPROVED", "r1 PENDING", "c2 PENDING"})
	w.same("the rest", valuesOf(decide(`"upTo":"`+positions[2]+`","feature":"api_calls"`), "count", "amount"), "2 -4")
	w.same("none", valuesOf(decide(`"upTo":"`+positions[2]+`"`), "count", "amount", "position"), "0 0 <nil>")
}

func TestListsOfPeriodsAndAdjustmentsHavePages(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 10), old("u2", 5), event("now", nil), event("s", map[string]any{"feature": "storage"}))
	path := w.closed(a)
	w.accept(a, correction("c1", "u1", 7), retraction("r1", "u2"))
	w.fold()
	key, _ := lastMonth()
	for list, want := range map[string]string{periodsOf(a): now()[:7] + " " + key + " lifetime ", path + "/adjustments": "c1 r1 ",
		"/api/v1/adjustments": "c1 r1 ", "/api/v1/adjustments?tenantId=" + a.id: "c1 r1 "} {
		got := ""
		for _, m := range w.entries(bootstrap, with(list, "limit=1")) {
			id := cmp.Or(m["sourceEventId"], m["periodKey"])
			got += id.(string) + " "
		}
		w.same(list, got, want)
	}
}

func TestTheLatePolicyOfATenantIsSetAndCleared(t *testing.T) {
	w := newTestService(t)
	id := w.newAccountlessTenant("A")
	change := func(body string) string {
		return valuesOf(w.want(200, call{"PATCH", "/api/v1/tenants/" + id, bootstrap, nil, body}), "lateUsage", "closeAfterHours")
	}
	for _, c := range [][2]string{{`{"name":"B"}`, "REJECT <nil>"}, {`{"lateUsage":"ADJUST","closeAfterHours":24}`, "ADJUST 24"},
		{`{"name":"C"}`, "ADJUST 24"}, {`{"closeAfterHours":null}`, "ADJUST <nil>"},
		{`{"lateUsage":"REJECT"}`, "REJECT <nil>"}, {`{"closeAfterHours":8784}`, "REJECT 8784"}} {
		w.same(c[0], change(c[0]), c[1])
	}
}
