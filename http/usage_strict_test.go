package http_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
)

var strictly = map[string]string{"Prefer": "respond-async, handling=strict"}

// TestP3_AStrictBatchIsRecordedWholeOrNotAtAll: each kind of refusal, whether it is found before the log or under its lock, and wherever it
// is in the batch.
func TestP3_AStrictBatchIsRecordedWholeOrNotAtAll(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil,
		`{"name":"Basic","entitlements":[{"feature":"api_calls","limit":10,"limitBehavior":"HARD","resetPeriod":"MONTHLY",` +
			`"onIngest":"enforce"},` +
			`{"feature":"storage","limit":null,"resetPeriod":"NEVER"},{"feature":"sso"}]}`})
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"plan":"basic"}`})
	known := storage("known", 3)
	w.ingest(a, batch(known))
	good, twin := storage("good", 5), storage("twin", 5)
	for _, c := range []struct {
		name, codes string
		list        []any
	}{
		{"shape", "batch_refused amount_invalid", []any{good, storage("bad", 0)}},
		{"policy", "feature_not_found batch_refused", []any{event("bad", map[string]any{"feature": "nothing"}), good}},
		{"limit", "batch_refused quota_exceeded batch_refused", []any{event("six", map[string]any{"amount": 6}),
			event("five", map[string]any{"amount": 5}), good}},
		{"limit of several", "batch_refused quota_exceeded batch_refused quota_exceeded", []any{
			event("six", map[string]any{"amount": 6}), event("five", map[string]any{"amount": 5}),
			event("four", map[string]any{"amount": 4}), event("one", map[string]any{"amount": 1})}},
		{"correction", "batch_refused correction_target_unknown", []any{good, correction("fix", "unknown", 1)}},
		{"conflict", "batch_refused payload_conflict duplicate", []any{good, storage("known", 4), known}},
		{"conflict of the batch", "batch_refused payload_conflict", []any{twin, storage("twin", 6)}},
		{"duplicate of the batch", "batch_refused batch_refused feature_not_found",
			[]any{good, good, event("bad", map[string]any{"feature": "nothing"})}},
	} {
		usage := w.usageStored()
		got := w.do(call{"POST", "/api/v1/usage/events", a.key, strictly, batch(c.list...)})
		var answered map[string]any
		w.must(json.Unmarshal(got.body, &answered))
		var codes []string
		for _, v := range verdicts(answered) {
			code, _ := v["code"].(string)
			if code == "" {
				code = v["status"].(string)
			}
			codes = append(codes, code)
			w.verdictInTable(v)
		}
		if strings.Join(codes, " ") != c.codes || got.status != 422 || got.header.Get("Preference-Applied") != "handling=strict" {
			t.Errorf("%s: %d %s, want the codes %s", c.name, got.status, got.body, c.codes)
		}
		if after := w.usageStored(); after != usage {
			t.Errorf("%s: %d events are recorded", c.name, after-usage)
		}
	}
	whole := call{"POST", "/api/v1/usage/events", a.key, strictly, batch(good, known, event("ten", map[string]any{"amount": 10}))}
	if n := fmt.Sprint(w.want(202, whole)["accepted"]); n != "2" {
		t.Errorf("%s events are accepted", n)
	}
	if n := fmt.Sprint(w.want(202, whole)["duplicates"]); n != "3" { // also now that the limit is reached
		t.Errorf("%s events are duplicates", n)
	}
	if n := w.metric(`meterplex_events_ingested_total{tenant_class="small",verdict="rejected"}`); n != 7 {
		t.Errorf("%d events are counted as rejected: others of a batch are not", n)
	}
}

// usageStored counts the rows of the log that are no records of conflicts.
func (w *testService) usageStored() (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(), events.SQL(`SELECT count(*) FROM event_log_rows WHERE subject <> {usage.event.conflicted}`)).
		Scan(&n))
	return n
}
