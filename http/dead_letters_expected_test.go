package http_test

import (
	"encoding/json"
	"sync"
	"testing"
)

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
		case 409: // with the present number
			var current struct{ Matched int }
			if w.must(json.Unmarshal(w.refused(got, 409, "state_changed").Current, &current)); current.Matched <= shown {
				t.Errorf("%d shown, %s", shown, got.body)
			}
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
