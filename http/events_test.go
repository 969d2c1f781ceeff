package http_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections/audit"
)

// loggedEvents returns the log of an account, or the whole log if it is nil, in its wire format.
func (w *testService) loggedEvents(p *account) (lines []string) {
	w.Helper()
	return w.wireOf(p, codec.AppendWire)
}

// tenantsEvents is loggedEvents as a tenant's key reads it.
func (w *testService) tenantsEvents(p *account) (lines []string) {
	w.Helper()
	return w.wireOf(p, codec.AppendTenantWire)
}

func (w *testService) wireOf(p *account, form func([]byte, *events.Envelope) ([]byte, error)) (lines []string) {
	w.Helper()
	w.must(pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		for partition := range int16(events.Partitions) {
			list, err := w.log.ReadTx(w.Context(), tx, partition, 0, 1<<62, 0, 1<<20)
			if err != nil {
				return err
			}
			for i := range list {
				if p == nil || list[i].TenantID.String() == p.id {
					line, err := form(nil, &list[i])
					w.must(err)
					lines = append(lines, string(line))
				}
			}
		}
		return nil
	}))
	return lines
}

// pages reads all pages of a list and returns the entries as written.
func (w *testService) pages(key, path string) (all []string) {
	w.Helper()
	for cursor := ""; ; {
		a := w.do(call{method: "GET", path: path + cursor, key: key})
		var page struct {
			Data       []json.RawMessage
			NextCursor *string
		}
		if err := json.Unmarshal(a.body, &page); err != nil || a.status != 200 {
			w.Fatalf("%s: %d %s", path, a.status, a.body)
		}
		for _, d := range page.Data {
			all = append(all, string(d))
		}
		if page.NextCursor == nil {
			return all
		}
		cursor = "&cursor=" + url.QueryEscape(*page.NextCursor)
	}
}

// entries are the decoded entries of pages.
func (w *testService) entries(key, path string) (all []map[string]any) {
	w.Helper()
	for _, text := range w.pages(key, path) {
		var entry map[string]any
		w.must(json.Unmarshal([]byte(text), &entry))
		all = append(all, entry)
	}
	return all
}

// newServiceWithEvents is a test service with two accounts and some events.
func newServiceWithEvents(t *testing.T) (w *testService, a, b *account, auditor string) {
	w = newTestService(t)
	w.catalogue()
	a, b = w.newAccount("A"), w.newAccount("B")
	for i := range 5 {
		w.ingest(a, batch(event(fmt.Sprint("e", i), nil), event(fmt.Sprint("s", i), map[string]any{"feature": "storage"})))
		w.ingest(b, batch(event(fmt.Sprint("e", i), nil)))
	}
	w.ingest(a, batch(event("e0", map[string]any{"amount": 7})))
	w.letter(a)
	auditor, _ = w.key("", nil, "audit")
	return w, a, b, auditor
}

func TestTheLogIsListedAsItIsOnTheWire(t *testing.T) {
	w, a, b, auditor := newServiceWithEvents(t)
	all, named, own := w.loggedEvents(nil), w.loggedEvents(a), w.tenantsEvents(a)
	for _, c := range []struct {
		name, key, path string
		want            []string
	}{
		{"own", a.key, "/api/v1/events?limit=3", own},
		{"all", auditor, "/api/v1/events?limit=7", all},
		{"named", auditor, "/api/v1/events?limit=1000&tenantId=" + a.id, named},
		{"the platform's", auditor, "/api/v1/events?limit=2&tenantId=platform", linesWith(all, `"tenantId":"platform"`)},
		{"subject", a.key, "/api/v1/events?limit=2&subject=meterplex.usage.event.recorded.v1",
			linesWith(own, `"eventType":"meterplex.usage.event.recorded"`)},
		{"subjects", auditor, "/api/v1/events?limit=5&subject=meterplex.catalogue.", linesWith(all, `"eventType":"meterplex.catalogue.`)},
		{"stream", a.key, "/api/v1/events?limit=1&stream=usage/e0", linesWith(own, `"eventId":"e0"`)},
		{"stream of a feature", auditor, "/api/v1/events?limit=9&stream=feature/api_calls", linesWith(all, `"lookupKey":"api_calls"`)},
		{"stream of another", b.key, "/api/v1/events?limit=9&stream=tenant/" + a.id, nil},
		{"before the beginning", a.key, "/api/v1/events?limit=9&to=2020-01-01T00:00:00Z", nil},
		{"from the beginning", a.key, "/api/v1/events?limit=9&from=2020-01-01T00:00:00Z", own},
	} {
		w.same(c.name+": events", w.pages(c.key, c.path), c.want)
	}
	var third struct{ Position, CorrelationID string }
	w.must(json.Unmarshal([]byte(own[2]), &third))
	w.same("after the third", w.pages(a.key, "/api/v1/events?limit=4&after="+third.Position), own[3:])
	if got := w.pages(a.key, "/api/v1/events?limit=4&correlationId="+strings.ReplaceAll(third.CorrelationID, "-", "")); !slices.Equal(got,
		linesWith(own, third.CorrelationID)) || len(got) == 0 {
		t.Errorf("of the trace %s: %.300s", third.CorrelationID, got)
	}
}

// TestAPageOfTheLogIsBoundedByItsBytes: a page of large events ends early, also between two partitions, and its cursor goes on there.
func TestAPageOfTheLogIsBoundedByItsBytes(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccountIn("B", func(partition int16) bool { return partition != a.partition() })
	large := make([]any, 180)
	for i := range large {
		large[i] = event(fmt.Sprint(i), map[string]any{"metadata": map[string]any{"k": strings.Repeat("x", 3900)}})
	}
	w.ingest(a, batch(large...))
	w.ingest(b, batch(large...))
	w.ingest(a, batch(large[0], event("last", nil)))
	auditor, _ := w.key("", nil, "audit")
	for _, path := range []string{"/api/v1/events?limit=1000", "/api/v1/events?limit=300"} {
		if first := w.do(call{method: "GET", path: path, key: auditor}); first.status != 200 || len(first.body) > 3<<20/2 {
			t.Errorf("a page is %d bytes", len(first.body))
		}
		w.same(path, w.pages(auditor, path), w.loggedEvents(nil))
	}
	exported := w.do(call{method: "GET", path: "/api/v1/events/export", key: auditor})
	w.same("the export", strings.Split(strings.TrimSpace(string(exported.body)), "\n"), w.loggedEvents(nil))
}

func linesWith(lines []string, part string) (some []string) {
	for _, line := range lines {
		if strings.Contains(line, part) {
			some = append(some, line)
		}
	}
	return some
}

func TestOneEventAndItsLineage(t *testing.T) {
	w, a, b, auditor := newServiceWithEvents(t)
	own := w.tenantsEvents(a)
	for i, line := range w.loggedEvents(a) {
		var e struct{ EventID, Position string }
		w.must(json.Unmarshal([]byte(line), &e))
		for _, path := range []string{e.EventID, e.Position, e.EventID + "?tenantId=" + a.id} {
			for key, line := range map[string]string{a.key: own[i], auditor: line} {
				if got := w.do(call{method: "GET", path: "/api/v1/events/" + path, key: key}); got.status != 200 ||
					strings.TrimSpace(string(got.body)) != line {
					t.Errorf("%s: %d %s instead of %s", path, got.status, got.body, line)
				}
			}
			w.refused(w.do(call{method: "GET", path: "/api/v1/events/" + e.Position, key: b.key}), 404, "not_found")
		}
	}
	rejected := linesWith(w.loggedEvents(a), `"eventType":"meterplex.usage.event.rejected"`)[0]
	var e struct{ EventID, CausationID string }
	w.must(json.Unmarshal([]byte(rejected), &e))
	got := w.want(200, call{method: "GET", path: "/api/v1/events/" + e.CausationID + "/lineage", key: a.key})
	nodes, edges := got["nodes"].([]any), got["edges"].([]any)
	if got["root"] != e.CausationID || len(nodes) != 2 || len(edges) != 1 ||
		nodes[1].(map[string]any)["summary"] != "event rejected rejected-of-A feature_not_found" {
		t.Errorf("%v", got)
	}
	w.refused(w.do(call{method: "GET", path: "/api/v1/events/" + e.CausationID + "/lineage", key: b.key}), 404, "not_found")
}

// P12: figures as known at a moment, and their events, over HTTP.
func TestP12_FiguresAsOfAPositionAndTheirEvents(t *testing.T) {
	w, a, _, auditor := newServiceWithEvents(t)
	figures := func(query string) map[string]any {
		return w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates?feature=storage&tenantId=" + a.id + query, key: auditor})
	}
	before := figures("")
	time := now()
	w.ingest(a, batch(event("late", map[string]any{"feature": "storage", "amount": 100})))
	w.fold()
	after := figures("")
	if fmt.Sprint(before["data"]) == fmt.Sprint(after["data"]) {
		t.Fatalf("nothing was counted: %v", after)
	}
	for _, at := range []string{"&asOfPosition=" + before["asOfPosition"].(string), "&asOf=" + url.QueryEscape(time)} {
		w.same("the answer", fmt.Sprint(figures(at)["data"]), fmt.Sprint(before["data"]))
	}
	explain := "/api/v1/usage/aggregates/explain?include=rejected&feature=storage&periodKey=lifetime&subscriptionId=" + a.subscription
	got := w.want(200, call{method: "GET", path: explain, key: a.key})
	if got["total"] != json.Number("105") || got["adds"] != true || len(got["data"].([]any)) != 6 || len(got["rejected"].([]any)) != 0 ||
		got["nextCursor"] != nil {
		t.Errorf("%v", got)
	}
	then := w.want(200, call{method: "GET", path: explain + "&limit=2&asOfPosition=" + before["asOfPosition"].(string), key: a.key})
	if then["total"] != json.Number("5") || then["adds"] != true || len(then["data"].([]any)) != 2 || then["nextCursor"] == nil {
		t.Errorf("%v", then)
	}
	gone := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates/explain?include=rejected&feature=gone&periodKey=lifetime",
		key: a.key})
	if got := gone["rejected"].([]any); len(got) != 1 || got[0].(map[string]any)["code"] != "feature_not_found" ||
		gone["total"] != json.Number("0") {
		t.Errorf("%v", gone)
	}
}

// lines splits the answer of an export.
func lines(a answer) []string {
	return strings.FieldsFunc(string(a.body), func(r rune) bool { return r == '\n' })
}

func TestExportsAreCompleteAndResume(t *testing.T) {
	w, a, _, auditor := newServiceWithEvents(t)
	for _, c := range []struct {
		key, path string
		want      []string
	}{{a.key, "", w.tenantsEvents(a)}, {auditor, "", w.loggedEvents(nil)}, {auditor, "?subject=meterplex.usage.&tenantId=" + a.id,
		linesWith(w.loggedEvents(a), `"eventType":"meterplex.usage.`)}} {
		got := w.do(call{method: "GET", path: "/api/v1/events/export" + c.path, key: c.key})
		if got.status != 200 || got.header.Get("Content-Type") != "application/x-ndjson" || !slices.Equal(lines(got), c.want) ||
			!bytes.HasSuffix(got.body, []byte("}\n")) {
			t.Errorf("%q: %d %v, %d lines instead of %d", c.path, got.status, got.header, len(lines(got)), len(c.want))
		}
		for n, line := range c.want { // interrupted after each line
			var e struct{ Position events.Position }
			w.must(json.Unmarshal([]byte(line), &e))
			rest := w.do(call{method: "GET", path: "/api/v1/events/export" + with(c.path, "after="+e.Position.String()), key: c.key})
			if !slices.Equal(lines(rest), c.want[n+1:]) {
				t.Errorf("%q after line %d: %d lines instead of %d", c.path, n, len(lines(rest)), len(c.want)-n-1)
			}
		}
	}
	// A read after a position in every partition returns all later events.
	var after audit.Frontier
	for _, line := range w.loggedEvents(nil) {
		var e struct{ Position events.Position }
		w.must(json.Unmarshal([]byte(line), &e))
		after[e.Position.Partition] = e.Position.Number
	}
	w.ingest(a, batch(event("since", nil)))
	rest := w.do(call{method: "GET", path: "/api/v1/events/export?after=" + after.String(), key: auditor})
	if got := lines(rest); len(got) != 1 || !strings.Contains(got[0], `"eventId":"since"`) {
		t.Errorf("since the last export: %s", got)
	}
	if head := w.do(call{method: http.MethodHead, path: "/api/v1/events/export", key: a.key}); head.status != 200 || len(head.body) > 0 {
		t.Errorf("HEAD: %d %s", head.status, head.body)
	}
}
