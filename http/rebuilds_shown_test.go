package http_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/projections/validate"
)

// foldBoth folds new usage into the live generation and the rebuilt one.
func (w *testService) foldBoth() {
	w.Helper()
	w.feed(validate.Consumer(newID, new(validate.Histories)))
	w.feed(usage.Consumer(newID, doublingFolds().Usage))
}

// promoteIf promotes a rebuild with If-Match.
func (w *testService) promoteIf(id, tag string) answer {
	w.Helper()
	return w.do(call{"POST", "/api/v1/rebuilds/" + id + "/promote", bootstrap, map[string]string{"If-Match": tag}, `{"reason":"test"}`})
}

// A promotion with the tag of a difference is refused if its figures have changed since, with the present ones; readers see no change.
func TestAPromotionMatchesTheShownDifference(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	path := "/api/v1/rebuilds/" + id + "/diff"
	shown := w.do(call{method: "GET", path: path, key: bootstrap})
	tag := shown.header.Get("ETag")
	var body struct{ ETag *string }
	if w.must(json.Unmarshal(shown.body, &body)); tag == "" || body.ETag == nil || *body.ETag != tag || strings.HasPrefix(tag, "W/") {
		t.Fatalf("ETag %s, in the body %v", tag, body.ETag)
	}
	for _, part := range []string{"?tenantId=" + a.id, "?feature=storage", "?periodKey=lifetime", "?totals=false"} {
		if got := w.do(call{method: "GET", path: path + part, key: bootstrap}); got.header.Get("ETag") != "" {
			t.Errorf("%s has the tag of the whole difference", part)
		}
	}
	for _, invalid := range []string{"x", `"a`, `"a" "b"`, `*, "a"`, "W/x", `""",`, strings.Repeat(`"a",`, 16) + `"a"`} {
		w.refused(w.promoteIf(id, invalid), 400, "header_invalid")
	}
	w.ingest(a, batch(event("late", map[string]any{"feature": "storage", "amount": 100}))) // counted twice by the new fold
	w.foldBoth()
	for _, stale := range []string{tag, "W/" + tag, `"x"`, `"."`, `"` + strings.Repeat("x", 3000) + `"`} {
		p := w.refused(w.promoteIf(id, stale), 409, "state_changed")
		var current struct {
			Keys  int
			Delta json.Number
			ETag  string
		}
		w.must(json.Unmarshal(p.Current, &current))
		now := w.do(call{method: "GET", path: path, key: bootstrap}).header.Get("ETag")
		if current.Keys != 2 || current.Delta != "133" || current.ETag != now || now == tag || !strings.Contains(p.Detail, "2 keys differ with a sum of deltas of 133") {
			t.Errorf("current is %s, the tag %s: %s", p.Current, now, p.Detail)
		}
	}
	if w.figure(a) != "122" {
		t.Errorf("readers see %s after a refused promotion", w.figure(a))
	}
	now := w.do(call{method: "GET", path: path, key: bootstrap}).header.Get("ETag")
	// Both folds count these alike: the positions move, and the difference stays.
	for i := range 3 {
		w.ingest(a, batch(event(fmt.Sprint("same-", i), nil)))
		w.foldBoth()
	}
	if moved := w.do(call{method: "GET", path: path, key: bootstrap}).header.Get("ETag"); moved == now {
		t.Error("the tag does not name the positions")
	}
	if got := w.promoteIf(id, `"other", `+now); got.status != 202 || w.figure(a) != "244" {
		t.Errorf("%d %s: readers see %s", got.status, got.body, w.figure(a))
	}
}

// A promotion changes no frozen figure: a difference is another one once a period of its keys is closed, closed again or open again. Periods whose keys do
// not differ do not matter.
func TestAPromotionMatchesTheShownClosedPeriods(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	path := "/api/v1/rebuilds/" + id + "/diff"
	tag := func() string { return w.do(call{method: "GET", path: path, key: bootstrap}).header.Get("ETag") }
	period := w.want(200, call{method: "GET", path: path, key: bootstrap})["data"].([]any)[0].(map[string]any)["periodKey"].(string)
	change := func(period, change string, snapshot int) {
		w.asOwner(`INSERT INTO period_changes SELECT $1, count(*) + 1, $2, $3, $4, now() FROM period_changes`, a.id, period, snapshot, change)
	}
	for _, c := range []struct {
		change   string
		snapshot int
	}{{"closed", 1}, {"reopened", 1}, {"closed", 2}} {
		shown := tag()
		change(period, c.change, c.snapshot)
		p := w.refused(w.promoteIf(id, shown), 409, "state_changed")
		if now := tag(); now == shown || strings.Contains(p.Detail, "1 of closed periods") != (c.change == "closed") || !strings.Contains(string(p.Current), strings.Trim(now, `"`)) {
			t.Errorf("behind %s %d the tag is %s, current is %s: %s", c.change, c.snapshot, now, p.Current, p.Detail)
		}
	}
	shown := tag()
	change("2026-01", "closed", 1)
	w.ingest(a, batch(event("same", nil)))
	w.foldBoth()
	if got := w.promoteIf(id, shown); got.status != 202 {
		t.Errorf("a period without keys that differ is closed: %d %s", got.status, got.body)
	}
}

// Rows that are no amounts have no sums: only the positions tell that their difference is the one that was shown.
func TestAPromotionOfRowsMatchesThePositions(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	w.fold()
	id := w.rebuilt("dead_letter_events", nil)
	tag := w.do(call{method: "GET", path: "/api/v1/rebuilds/" + id + "/diff", key: bootstrap}).header.Get("ETag")
	w.rejections(a, "gone", 1)
	w.refused(w.promoteIf(id, tag), 409, "state_changed")
	if got := w.promoteIf(id, "*"); got.status != 202 {
		t.Errorf("%d %s", got.status, got.body)
	}
}
