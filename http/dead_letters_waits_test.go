package http_test

import (
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

// A dead letter that is not folded yet is waited for, as a list with it is. An unknown one is not found once the position has passed.
func TestAReadOfADeadLetterWaitsForItsFold(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(event("e", nil)))
	w.ingest(a, batch(event("e", map[string]any{"amount": 2})))
	var id, at, beyond string
	w.must(w.pool.QueryRow(t.Context(), `SELECT l.event_id, l.partition || '-' || l.position, h.partition || '-' || h.position + 1
 FROM event_log_rows l JOIN log_heads h USING (partition) WHERE l.tenant_id = $1 AND l.subject = $2`, a.id, events.UsageConflicted).
		Scan(&id, &at, &beyond))
	letter := func(id, at, wait string) answer {
		return w.do(call{"GET", "/api/v1/dead-letters/" + id + "?minPosition=" + at, bootstrap, map[string]string{"Prefer": "wait=" + wait},
			nil})
	}
	unknown := newID().String()
	w.refused(letter(id, at, "0"), 503, "projection_behind")
	w.refused(letter(unknown, at, "0"), 503, "projection_behind")
	w.refused(letter(id, beyond, "0"), 400, "position_invalid")
	found := make(chan answer, 1)
	go func() { found <- letter(id, at, "30") }()
	select {
	case early := <-found:
		t.Fatalf("the letter is not folded, and the answer is %d %s", early.status, early.body)
	case <-time.After(100 * time.Millisecond):
	}
	w.fold()
	if got := <-found; got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	w.refused(letter(unknown, at, "20"), 404, "not_found")
	w.refused(letter(unknown, "0-0", "20"), 404, "not_found")
}
