package http_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
)

// A bulk with the number that was shown is refused with the present number if it differs, and then changes no dead letter.
func TestABulkOfAnotherNumberIsRefused(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.rejections(a, "gone", 3)
	bulk := func(expected int) map[string]any {
		return map[string]any{"action": "retry", "filter": map[string]any{"feature": "gone"}, "expectedMatched": expected}
	}
	w.rejections(a, "gone", 1) // after the page was shown
	before := w.stored()
	if p := w.refused(w.do(post("/bulk", bulk(3))), 409, "state_changed"); string(p.Current) != `{"matched":4}` || w.stored() != before {
		t.Errorf("current is %s, %d events were recorded", p.Current, w.stored()-before)
	}
	if done := w.want(202, post("/bulk", bulk(4))); fmt.Sprintf("%v %v", done["matched"], done["requested"]) != "4 4" {
		t.Errorf("%v", done)
	}
}

// While dead letters arrive, each bulk that is accepted changes exactly as many as were shown, and each that is refused changes none.
func TestBulksAreExactWhileDeadLettersArrive(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.rejections(a, "gone", 1)
	var arriving sync.WaitGroup
	arriving.Go(func() {
		for range 20 {
			w.rejections(a, "gone", 1)
		}
	})
	accepted, requested := 0, 0
	for range 60 {
		shown := len(w.letters("?feature=gone&limit=1000"))
		got := w.do(post("/bulk", map[string]any{"action": "retry", "filter": map[string]any{"feature": "gone"}, "expectedMatched": shown}))
		var done struct {
			Matched, Requested int
			Refused            []struct{ Count int }
		}
		switch w.must(json.Unmarshal(got.body, &done)); got.status {
		case 202:
			left := 0
			for _, r := range done.Refused {
				left += r.Count
			}
			if accepted, requested = accepted+1, requested+done.Requested; done.Matched != shown || done.Requested+left != shown {
				t.Errorf("%d shown, %s", shown, got.body)
			}
		case 409:
		default:
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	arriving.Wait()
	var recorded int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE subject = 13`).Scan(&recorded))
	if recorded != requested || accepted == 0 {
		t.Errorf("%d accepted bulks requested %d retries, the log has %d", accepted, requested, recorded)
	}
}
