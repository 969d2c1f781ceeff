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
	w.feed(validate.Consumer(newID, new(validate.HistoryReader)))
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
	tag := func(query string) string {
		return w.do(call{method: "GET", path: path + query, key: bootstrap}).header.Get("ETag")
	}
	shown := tag("")
	w.same("the tag in the body", w.get("/rebuilds/" + id + "/diff")["etag"], shown)
	for _, part := range []string{"?tenantId=" + a.id, "?feature=storage", "?periodKey=lifetime", "?totals=false"} {
		w.same(part+": the tag", tag(part), "")
	}
	for _, invalid := range []string{"x", `"a`, `"a" "b"`, `*, "a"`, "W/x", `""",`, strings.Repeat(`"a",`, 16) + `"a"`} {
		w.refused(w.promoteIf(id, invalid), 400, "header_invalid")
	}
	w.ingest(a, batch(event("late", map[string]any{"feature": "storage", "amount": 100}))) // counted twice by the new fold
	w.foldBoth()
	for _, stale := range []string{shown, "W/" + shown, `"x"`, `"."`, `"` + strings.Repeat("x", 3000) + `"`} {
		p := w.refused(w.promoteIf(id, stale), 409, "state_changed")
		var current struct {
			Keys  int
			Delta json.Number
			ETag  string
		}
		w.must(json.Unmarshal(p.Current, &current))
		w.same("current", fmt.Sprint(current.Keys, " ", current.Delta, " ", current.ETag), "2 133 "+tag(""))
		w.holds("the detail", p.Detail, "2 keys differ with a sum of deltas of 133")
	}
	w.same("the figure after a refused promotion", w.figure(a), "122")
	now := tag("")
	for i := range 3 { // both folds count these alike: the positions move, and the difference stays
		w.ingest(a, batch(event(fmt.Sprint("same-", i), nil)))
		w.foldBoth()
	}
	if moved := tag(""); moved == now || now == shown {
		t.Errorf("the tags are %s, %s, %s", shown, now, moved)
	}
	w.same("promoted", fmt.Sprint(w.promoteIf(id, `"other", `+now).status, " ", w.figure(a)), "202 244")
}

// A promotion changes no frozen figure: a difference is another one once a period of its keys is closed, closed again or open again.
// Periods whose keys do
// not differ do not matter.
func TestAPromotionMatchesTheShownClosedPeriods(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	path := "/rebuilds/" + id + "/diff"
	period := w.get(path)["data"].([]any)[0].(map[string]any)["periodKey"].(string)
	change := func(period, change string, snapshot int) {
		w.asOwner(`INSERT INTO period_changes SELECT $1, count(*) + 1, $2, $3, $4, now() FROM period_changes`, a.id, period, snapshot,
			change)
	}
	for n, c := range []string{"closed", "reopened", "closed"} {
		shown := w.get(path)["etag"].(string)
		change(period, c, n/2+1)
		p, now := w.refused(w.promoteIf(id, shown), 409, "state_changed"), w.get(path)["etag"].(string)
		if now == shown || strings.Contains(p.Detail, "1 of closed periods") != (c == "closed") {
			t.Errorf("behind %s the tag is %s: %s", c, now, p.Detail)
		}
		w.holds("current", string(p.Current), strings.Trim(now, `"`))
	}
	shown := w.get(path)["etag"].(string)
	change("2026-01", "closed", 1)
	w.ingest(a, batch(event("same", nil)))
	w.foldBoth()
	w.same("a period without keys that differ is closed", w.promoteIf(id, shown).status, 202)
}

// Rows that are no amounts have no sums: only the positions tell that their difference is the one that was shown.
func TestAPromotionOfRowsMatchesThePositions(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	w.fold()
	id := w.rebuilt("dead_letter_events", nil)
	tag := w.do(call{method: "GET", path: "/api/v1/rebuilds/" + id + "/diff", key: bootstrap}).header.Get("ETag")
	w.rejections(a, "gone", 1)
	w.refused(w.promoteIf(id, tag), 409, "state_changed")
	w.same("the answer", w.promoteIf(id, "*").status, 202)
}
