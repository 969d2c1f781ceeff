package http_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func (w *testService) export(path, format string) string {
	w.Helper()
	got := w.do(call{method: "GET", path: with(path, "format="+format), key: bootstrap})
	if got.status != 200 {
		w.Fatalf("%d %s", got.status, got.body)
	}
	return string(got.body)
}

// exportedAsRead compares an export with the period and its adjustments as the other routes read them. A settled one has no live figures.
func (w *testService) exportedAsRead(path string, settled bool) {
	w.Helper()
	var is map[string]any
	w.must(json.Unmarshal([]byte(w.export(path+"/export", "json")), &is))
	var want map[string]any
	w.must(json.Unmarshal(w.do(call{method: "GET", path: path, key: bootstrap}).body, &want))
	var list map[string]any
	w.must(json.Unmarshal(w.do(call{method: "GET", path: path + "/adjustments", key: bootstrap}).body, &list))
	if want["adjustments"] = list["data"]; settled {
		want["asOfPosition"] = nil
		for _, line := range want["lines"].([]any) {
			m := line.(map[string]any)
			m["net"], m["netEventCount"], m["unreconciled"] = nil, nil, nil
		}
	}
	w.same("the export of "+path, is, want)
}

// The export of a closed period without pending adjustments has the same bytes each time, also beside traffic; it holds the states of
// adjustments.
func TestP8_TheExportOfAClosedPeriodHasTheSameBytes(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 10), old("u2", 5))
	w.fold()
	key, _ := lastMonth()
	open := w.export(periodsOf(a)+"/"+key+"/export", "json")
	if !strings.Contains(open, `"state":"OPEN"`) || !strings.Contains(open, `"lines":[],"adjustments":[],"nextCursor":null}`) {
		t.Errorf("an open period: %s", open)
	}
	path := w.closed(a)
	same := func(of string, was [2]string) (is [2]string) {
		t.Helper()
		for i, format := range []string{"json", "csv"} {
			if is[i] = w.export(of, format); was[0] != "" && is[i] != was[i] {
				t.Errorf("the export was\n%s\nand is\n%s", was[i], is[i])
			}
		}
		return is
	}
	first := same(path+"/export", [2]string{})
	w.accept(a, event("now", nil), event("s", map[string]any{"feature": "storage"}))
	w.fold()
	same(path+"/export", first)
	w.accept(a, correction("c1", "u1", 7), retraction("r1", "u2"))
	w.fold()
	w.exportedAsRead(path, false)
	ids := w.adjustmentsAt(path+"/adjustments", "id")
	w.want(200, call{"POST", "/api/v1/adjustments/" + ids[0] + "/approve", bootstrap, nil, `{"reason":"r"}`})
	w.exportedAsRead(path, false)
	w.want(200, call{"POST", "/api/v1/adjustments/" + ids[1] + "/waive", bootstrap, nil, `{"reason":"r"}`})
	w.exportedAsRead(path, true)
	decided := same(path+"/export", [2]string{})
	for _, state := range []string{`"state":"APPROVED"`, `"state":"WAIVED"`} {
		w.holds("the adjustments", decided[0], state)
	}
	w.accept(a, event("later", nil))
	w.exec(`UPDATE sagas SET missing = '{dead_letters}'`)
	same(path+"/export", decided)
	w.fold()
	same(path+"/export", decided)
	if head := w.do(call{method: "HEAD", path: path + "/export", key: bootstrap}); head.status != 200 || len(head.body) > 0 {
		t.Errorf("HEAD: %d %s", head.status, head.body)
	}
	w.want(200, call{"POST", path + "/reopen", bootstrap, nil, `{"reason":"r"}`})
	w.closed(a)
	again := w.export(path+"/export?snapshot=1", "json")
	w.same("the first snapshot", again, decided[0])
	w.accept(a, correction("c2", "u1", 1))
	w.fold()
	w.same("beside an adjustment of the second", w.export(path+"/export?snapshot=1", "json"), again)
}

// An export of several pages has each line and each adjustment once, in the order of the lists.
func TestAnExportHasEachLineOfAllPages(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 10))
	path := w.closed(a)
	w.exec(`INSERT INTO period_lines SELECT tenant_id, period_key, snapshot, 'f' || n % 7, ('00000000-0000-0000-0000-' || lpad(n::text, 12,
		'0'))::uuid, n, n, last_event_at
 FROM period_lines, generate_series(1, 1200) n WHERE feature = 'api_calls'`)
	w.exec(`INSERT INTO period_charges (tenant_id, period_key, snapshot, feature, subscription_id, grant_number, status, amount,
		event_count)
 SELECT l.tenant_id, l.period_key, l.snapshot, l.feature, l.subscription_id, c.grant_number, c.status, l.amount, l.event_count
 FROM period_lines l JOIN period_charges c USING (tenant_id, period_key, snapshot) WHERE l.feature <> c.feature`)
	w.exec(`INSERT INTO adjustments SELECT gen_random_uuid(), tenant_id, period_key, snapshot + n % 2, 'f1', subscription_id, 'RETRY', n, 1,
		n, n, NULL, NULL, 'WAIVED', 'r', n
 FROM period_lines, generate_series(1, 2400) n WHERE feature = 'api_calls'`)
	var got struct {
		Lines []struct {
			Feature, SubscriptionID string
			Frozen                  json.Number
		}
		Adjustments []struct{ Position, State string }
	}
	w.must(json.Unmarshal([]byte(w.export(path+"/export", "json")), &got))
	w.same("the numbers", fmt.Sprint(len(got.Lines), len(got.Adjustments)), "1202 1200") // with the line of the adjustments
	for i := 1; i < len(got.Lines); i++ {
		if before, l := got.Lines[i-1], got.Lines[i]; before.Feature+before.SubscriptionID >= l.Feature+l.SubscriptionID {
			t.Fatalf("line %d is %v behind %v", i, l, before)
		}
	}
	for i, a := range got.Adjustments {
		if !strings.HasSuffix(a.Position, fmt.Sprint("-", 2*(i+1))) {
			t.Fatalf("adjustment %d is at %s", i, a.Position)
		}
	}
	w.same("lines as CSV", strings.Count(w.export(path+"/export", "csv"), "\n"), 1203)
	first := path + "/charges?limit=1000"
	lines, totals := w.charges(first)
	more, _ := w.charges(first + "&cursor=" + w.want(200, call{method: "GET", path: first, key: bootstrap})["nextCursor"].(string))
	// the line of waived adjustments has no charge
	w.same("the charges", fmt.Sprint(len(lines), " ", len(more), " ", totals), "1000 201 1201 billable 1")
}
