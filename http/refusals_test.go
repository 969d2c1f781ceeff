package http_test

import (
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/refusals"
)

func TestP12_RefusedUsageIsListedByCodeAndFeature(t *testing.T) {
	w, a := newServiceWithAccount(t)
	other := w.newAccount("other")
	before := w.stored()
	send := func(key string, list ...any) {
		w.want(202, call{"POST", "/api/v1/usage/events", key, nil, batch(list...)})
	}
	send(a.writer, event("good", nil))
	w.recordSeen()
	if n := w.stored() - before; n != 1 {
		t.Errorf("accepted usage is %d rows of the log", n)
	}
	for range 2 {
		send(a.writer, event("good", nil), event("typo", map[string]any{"feature": "api_callz", "amount": 7}),
			event("bad", map[string]any{"amount": "5"}))
		send(a.writer, event("typo-2", map[string]any{"feature": "api_callz"}), "no object")
		w.recordSeen()
	}
	send(other.writer, event("typo", map[string]any{"feature": "storages"}))
	w.recordSeen()
	list := rowsIn(w.want(200, call{"GET", "/api/v1/usage/refusals", a.reader, nil, nil}))
	counts := map[string]any{}
	for _, r := range list {
		counts[r["code"].(string)+" "+r["feature"].(string)] = fmt.Sprint(r["count"])
	}
	if len(list) != 3 || counts["feature_not_found api_callz"] != "4" || counts["amount_invalid api_calls"] != "2" ||
		counts["event_invalid "] != "2" {
		t.Fatalf("listed %v", list)
	}
	only := rowsIn(w.want(200, call{"GET", "/api/v1/usage/refusals?feature=api_callz&limit=1&tenantId=" + a.id, bootstrap, nil, nil}))
	samples := only[0]["samples"].([]any)
	sample := samples[0].(map[string]any)
	if len(samples) != 4 || sample["eventId"] != "typo" || sample["keyId"] == nil || sample["timestamp"] == nil ||
		len(sample["payload"].(string)) < 20 {
		t.Errorf("samples %v", samples)
	}
	page := w.want(200, call{"GET", "/api/v1/usage/refusals?limit=3", bootstrap, nil, nil})
	rest := w.want(200, call{"GET", "/api/v1/usage/refusals?limit=3&cursor=" + page["nextCursor"].(string), bootstrap, nil, nil})
	if len(rowsIn(page)) != 3 || len(rowsIn(rest)) != 1 || rest["nextCursor"] != nil {
		t.Errorf("an operator gets %v, then %v", page, rest)
	}
	w.refused(w.do(call{"GET", "/api/v1/usage/refusals?tenantId=" + other.id, a.reader, nil, nil}), 404, "tenant_not_found")
	if n := w.metric(`meterplex_usage_refused_total{code="feature_not_found"}`); n != 5 {
		t.Errorf("%d are counted as feature_not_found", n)
	}
}

// A client that sends any name as a feature gets no more groups than the bound.
func TestP12_GroupsOfRefusalsAreBounded(t *testing.T) {
	w, a := newServiceWithAccount(t)
	sent := 0
	for range refusals.MaxGroups/events.MaxRefusalGroups + 2 {
		var list []any
		for range events.MaxRefusalGroups {
			sent++
			list = append(list, event("x", map[string]any{"feature": fmt.Sprintf("f%d", sent)}))
		}
		w.want(202, call{"POST", "/api/v1/usage/events", a.writer, nil, batch(list...)})
		w.recordSeen()
	}
	last := rowsIn(w.want(200, call{"GET", "/api/v1/usage/refusals?feature=*", a.reader, nil, nil}))
	if len(last) != 1 || fmt.Sprint(last[0]["count"]) != fmt.Sprint(2*events.MaxRefusalGroups) ||
		len(last[0]["samples"].([]any)) != events.MaxSeenSamples {
		t.Errorf("other features: %v", last)
	}
	page := w.want(200, call{"GET", "/api/v1/usage/refusals?limit=1000", a.reader, nil, nil})
	if len(rowsIn(page)) != 1000 || page["nextCursor"] == nil {
		t.Errorf("%d groups", len(rowsIn(page)))
	}
	// as large as they may be
	w.exec(`UPDATE usage_refusals SET samples = ('[' || repeat('{"payload":"' || repeat('x', 1024) || '"},', 9) || '{}]')::json`)
	first := w.do(call{"GET", "/api/v1/usage/refusals?limit=1000", a.reader, nil, nil})
	if n := len(first.body); n < 1<<20 || n > 5<<18 {
		t.Errorf("a page of large groups has %d bytes", n)
	}
	pages := 1
	for cursor := w.want(200, call{"GET", "/api/v1/usage/refusals?limit=1000", a.reader, nil, nil})["nextCursor"]; cursor != nil; pages++ {
		cursor = w.want(200, call{"GET", "/api/v1/usage/refusals?limit=1000&cursor=" + cursor.(string), a.reader, nil, nil})["nextCursor"]
	}
	if pages < 8 || pages > 12 {
		t.Errorf("all groups are %d pages", pages)
	}
}

// rowsIn returns the rows of a list.
func rowsIn(answer map[string]any) (rows []map[string]any) {
	for _, row := range answer["data"].([]any) {
		rows = append(rows, row.(map[string]any))
	}
	return rows
}
