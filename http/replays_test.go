package http_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// published moves the relay's cursors to the heads, like a relay.
func (w *testService) published() {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), `UPDATE relay_cursors c SET position = h.position FROM log_heads h WHERE h.partition = c.partition`)
	w.must(err)
}

func (w *testService) events(subject events.Subject) (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(), `SELECT count(*) FROM event_log_rows WHERE subject = $1`, int16(subject)).Scan(&n))
	return n
}

// The relay rewinds to the position that consumers still need, to a time or to positions,
// but never forward. Pages of the list are complete.
func TestTheRelayIsRewound(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccountIn("A", func(p int16) bool { return p != 0 }) // partition 0 is the platform's, and no router executes its commands here
	partition := a.partition()
	for n := range 5 {
		w.ingest(a, batch(event(fmt.Sprint("e", n), nil)))
	}
	w.fold()
	w.published()
	cursor := func() (position int64) {
		w.must(w.pool.QueryRow(w.Context(), `SELECT position FROM relay_cursors WHERE partition = $1`, partition).Scan(&position))
		return position
	}
	head := cursor()
	rewind := func(body string) map[string]any {
		w.Helper()
		return w.want(202, call{"POST", "/api/v1/replays/rewind", bootstrap, nil, body})
	}
	if r := rewind(`{"reason":"nobody needs anything"}`); cursor() != head || len(r["partitions"].([]any)) != 0 || r["state"] != "DONE" {
		t.Errorf("the consumers have all; the relay went to %d: %v", cursor(), r)
	}
	_, err := w.pool.Exec(w.Context(), `UPDATE consumer_checkpoints SET position = 3 WHERE consumer = 'meterplex-usage-aggregator' AND partition = $1`, partition)
	w.must(err)
	if rewind(`{"reason":"the aggregator is behind"}`); cursor() != 3 {
		t.Errorf("the aggregator stands at 3, the relay went to %d", cursor())
	}
	w.published()
	if r := rewind(fmt.Sprintf(`{"reason":"x","positions":["%d-%d"]}`, partition, head-1)); cursor() != head-2 || fmt.Sprint(r["remaining"]) != "2" {
		t.Errorf("the relay went to %d: %v", cursor(), r)
	}
	if rewind(fmt.Sprintf(`{"reason":"x","positions":["%d-%d"]}`, partition, head-1)); cursor() != head-2 {
		t.Errorf("the relay went to %d", cursor())
	}
	if rewind(`{"reason":"x","to":"2999-01-01T00:00:00Z"}`); cursor() != head-2 {
		t.Errorf("a time to come: the relay went to %d", cursor())
	}
	if rewind(`{"reason":"x","to":"2026-05-01T00:00:00Z"}`); cursor() != 0 {
		t.Errorf("a time before all: the relay went to %d", cursor())
	}
	seen := map[any]bool{}
	for _, r := range w.entries(bootstrap, "/api/v1/replays?limit=2") {
		seen[r["id"]] = true
	}
	w.same("replays that are listed, and in the log", []int{len(seen), w.events(52)}, []int{6, 6})
}

// A consumer's rewind is done by an instance with its role. The answer names the role
// and, if the rewind is overdue, says that such an instance must be started.
func TestARewindNamesTheRoleItWaitsFor(t *testing.T) {
	w := newTestService(t)
	made := w.want(202, call{"POST", "/api/v1/replays/rewind", bootstrap, nil, `{"consumer":"meterplex-usage-aggregator","to":"start","reason":"x"}`})
	if made["state"] != "RUNNING" || made["waitsFor"] != "an instance with the role aggregator" {
		t.Errorf("%v", made)
	}
	_, err := w.pool.Exec(w.Context(), `UPDATE replays SET created_at = created_at - interval '1 minute'`)
	w.must(err)
	path := "/api/v1/replays/" + made["id"].(string)
	if got, _ := w.want(200, call{method: "GET", path: path, key: bootstrap})["waitsFor"].(string); !strings.Contains(got, "serve --roles=aggregator") {
		t.Errorf("after a minute: %q", got)
	}
	_, err = w.pool.Exec(w.Context(), `UPDATE replays SET state = 'DONE', ended_at = now()`)
	w.must(err)
	if got := w.want(200, call{method: "GET", path: path, key: bootstrap}); got["waitsFor"] != nil {
		t.Errorf("done: %v", got)
	}
}
