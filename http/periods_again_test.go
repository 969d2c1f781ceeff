package http_test

import (
	"fmt"
	"strings"
	"testing"
)

// A decision on a scope decides adjustments of its tenant and feature only, though others have the same period, snapshot and position.
func TestP9_ADecisionOfAScopeIsOfOneTenant(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccount("B")
	for _, of := range []*account{a, b} {
		w.accept(of, old("u1", 10))
		w.closed(of)
		w.accept(of, correction("c1", "u1", 7), correction("c2", "u1", 6))
	}
	w.fold()
	_, err := w.pool.Exec(t.Context(),
		`UPDATE adjustments SET position = 1, feature = CASE source_event_id WHEN 'c2' THEN 'storage' ELSE feature END`)
	w.must(err)
	key, _ := lastMonth()
	position := w.adjustmentsAt("/api/v1/adjustments?tenantId="+a.id, "position")[0]
	w.want(200, call{"POST", "/api/v1/adjustments/decide", bootstrap, nil,
		`{"tenantId":"` + a.id + `","periodKey":"` + key + `","upTo":"` + position +
			`","feature":"api_calls","decision":"waive","reason":"r"}`})
	w.same("those of the feature", w.adjustmentsAt("/api/v1/adjustments?feature=api_calls&tenantId="+a.id, "state"), []string{"WAIVED"})
	w.same("those of another", w.adjustmentsAt("/api/v1/adjustments?feature=storage&tenantId="+a.id, "state"), []string{"PENDING"})
	w.same("the other tenant's", w.adjustmentsAt("/api/v1/adjustments?tenantId="+b.id, "state"), []string{"PENDING", "PENDING"})
	w.same("a waived line", w.lines(periodsOf(a)+"/"+key, "feature", "frozen", "pending", "approved", "waived", "billable"),
		[]string{"api_calls 10 0 0 -3 10", "storage 0 -1 0 0 0"})
}

// A page of lines begins behind the last line, also within a feature, and stays with the snapshot in which the first page was read.
func TestPagesOfLinesStayWithTheirSnapshot(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 10))
	subscriptions := "/api/v1/tenants/" + a.id + "/subscriptions"
	w.want(200, call{"PATCH", subscriptions + "/" + a.subscription, bootstrap, nil, `{"status":"CANCELLED"}`})
	month, _ := lastMonth()
	w.want(201, call{"POST", subscriptions, bootstrap, nil, `{"plan":"basic","startsAt":"` + month + `-01T00:00:00Z"}`})
	w.accept(a, old("u2", 5))
	path := w.closed(a)
	_, err := w.pool.Exec(t.Context(), `UPDATE sagas SET missing = '{dead_letters}'`) // as after an end without them
	w.must(err)
	page := w.want(200, call{method: "GET", path: path + "?limit=1", key: bootstrap})
	w.same("missing of a close that has ended", page["missing"], []any{})
	exported := w.want(200, call{method: "GET", path: path + "/export?format=json", key: bootstrap})
	w.same("the exported lines", len(exported["lines"].([]any)), 2)
	w.want(200, call{"POST", path + "/reopen", bootstrap, nil, `{"reason":"r"}`})
	w.accept(a, old("u3", 100))
	w.closed(a)
	frozen := func(p map[string]any) string {
		return valuesOf(p, "snapshot") + " " + valuesOf(p["lines"].([]any)[0].(map[string]any), "feature", "frozen")
	}
	first := frozen(page)
	page = w.want(200, call{method: "GET", path: path + "?limit=1&cursor=" + page["nextCursor"].(string), key: bootstrap})
	w.same("the pages", []string{first, frozen(page)}, []string{"1 api_calls 10", "1 api_calls 5"})
	w.same("the last page", page["nextCursor"], nil)
	w.refused(w.do(call{method: "GET", path: path + "?snapshot=2&cursor=" + w.want(200,
		call{method: "GET", path: path + "?snapshot=1&limit=1", key: bootstrap})["nextCursor"].(string), key: bootstrap}), 400,
		"cursor_invalid")
}

// A cursor continues the list with the same filters only.
func TestACursorOfAdjustmentsKeepsItsFilters(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 10))
	path := w.closed(a)
	w.accept(a, correction("c1", "u1", 7), correction("c2", "u1", 8))
	w.fold()
	key, _ := lastMonth()
	for _, list := range []string{"/api/v1/adjustments", "/api/v1/adjustments?tenantId=" + a.id, path + "/adjustments"} {
		cursor := "limit=1&cursor=" + w.want(200, call{method: "GET", path: with(list, "limit=1"), key: bootstrap})["nextCursor"].(string)
		w.want(200, call{method: "GET", path: with(list, cursor), key: bootstrap})
		for _, filter := range []string{"state=PENDING", "kind=CORRECTION", "feature=api_calls", "periodKey=" + key} {
			if !strings.HasPrefix(filter, "periodKey") || !strings.HasPrefix(list, path) { // which has no such parameter
				w.refused(w.do(call{method: "GET", path: with(with(list, cursor), filter), key: bootstrap}), 400, "cursor_invalid")
			}
		}
	}
}

// Each close has a snapshot of its own, and each reopening counts the adjustments of its snapshot only.
func TestP8_APeriodIsClosedThreeTimes(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 10))
	for n, reopening := range []string{"1 1 1", "2 1 0", "3 2 0"} {
		path := w.closed(a)
		w.same("the snapshot", valuesOf(w.want(200, call{method: "GET", path: path, key: bootstrap}), "snapshot", "missing"),
			fmt.Sprint(n+1, " []"))
		w.accept(a, correction(fmt.Sprint("a", n), "u1", 11+n), correction(fmt.Sprint("b", n), "u1", 21+n))
		w.fold()
		pending := w.adjustmentsAt(path+"/adjustments?state=PENDING", "id")
		if decision := []string{"approve", "waive", ""}[n]; decision != "" {
			w.want(200, call{"POST", "/api/v1/adjustments/" + pending[0] + "/" + decision, bootstrap, nil, `{"reason":"r"}`})
		}
		if n == 1 {
			line := w.lines(path, "frozen", "pending", "approved", "waived", "billable", "net", "unreconciled")
			w.same("a waived line", line, []string{"21 10 0 -9 21 22 0"})
		}
		reopened := w.want(200, call{"POST", path + "/reopen", bootstrap, nil, `{"reason":"r"}`})
		w.same("the reopening", valuesOf(reopened, "snapshot", "voided", "approved"), reopening)
		void := w.adjustmentsAt(path+"/adjustments?state=VOID", "decidedPosition")
		w.same("the void ones", void[len(void)-1], reopened["position"])
	}
}
