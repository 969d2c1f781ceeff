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
	w.exec(`UPDATE relay_cursors c SET position = h.position FROM log_heads h WHERE h.partition = c.partition`)
}

func (w *testService) events(subject events.Subject) (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(), `SELECT count(*) FROM event_log_rows WHERE subject = $1`, int16(subject)).Scan(&n))
	return n
}

// The relay rewinds to a time or to positions,
// but never forward. Pages of the list are complete.
func TestTheRelayIsRewound(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	// partition 0 is the platform's, and no router executes its commands here
	a := w.newAccountIn("A", func(p int16) bool { return p != 0 })
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
	at := fmt.Sprintf(`,"positions":["%d-%d"]`, partition, head-1)
	for _, c := range []struct {
		before func()
		body   string
		want   int64
		answer string // its state and the number of partitions
	}{
		{w.published, `,"to":"2999-01-01T00:00:00Z"`, head, "DONE 0"},
		{w.published, at, head - 2, ""},
		{func() {}, at, head - 2, ""},
		{func() {}, `,"to":"2999-01-01T00:00:00Z"`, head - 2, ""},
		{func() {}, `,"to":"2026-05-01T00:00:00Z"`, 0, ""},
	} {
		c.before()
		got := w.want(202, call{"POST", "/api/v1/replays/rewind", bootstrap, nil, `{"reason":"x"` + c.body + `}`})
		w.same("the relay after "+c.body, cursor(), c.want)
		w.same("as it is read", w.want(200, call{method: "GET", path: "/api/v1/replays/" + got["id"].(string),
			key: bootstrap})["partitions"],
			got["partitions"])
		w.holds("the answer", fmt.Sprint(got["state"], " ", len(got["partitions"].([]any))), c.answer)
	}
	w.same("replays that are listed, and in the log", []int{len(w.entries(bootstrap, "/api/v1/replays?limit=2")), w.events(52)},
		[]int{5, 5})
}

// A rewind of the consumer of usage.commands is done by an instance with its role. The answer names the role
// and, if the rewind is overdue, says that such an instance must be started.
func TestARewindNamesTheRoleItWaitsFor(t *testing.T) {
	w := newTestService(t)
	made := w.want(202, call{"POST", "/api/v1/replays/rewind", bootstrap, nil,
		`{"consumer":"meterplex-usage-commands","to":"start","reason":"x"}`})
	if made["state"] != "RUNNING" || made["waitsFor"] != "an instance with the role commands" {
		t.Errorf("%v", made)
	}
	w.exec(`UPDATE replays SET created_at = created_at - interval '1 minute'`)
	path := "/api/v1/replays/" + made["id"].(string)
	if got, _ := w.want(200, call{method: "GET", path: path, key: bootstrap})["waitsFor"].(string); !strings.Contains(got,
		"serve --roles=commands") {
		t.Errorf("after a minute: %q", got)
	}
	w.exec(`UPDATE replays SET state = 'DONE', ended_at = now()`)
	w.same("done", w.want(200, call{method: "GET", path: path, key: bootstrap})["waitsFor"], nil)
}

// A consumer of the log reads on from its checkpoint: its rewind ends at once, moves no checkpoint, and is in the log.
func TestP2_ARewindOfAConsumerOfTheLogMovesNothing(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	w.ingest(a, batch(event("e", nil)))
	w.fold()
	places := func() (all string) {
		w.Helper()
		w.must(w.pool.QueryRow(w.Context(), `SELECT string_agg(c::text, ' ' ORDER BY consumer, partition) FROM consumer_checkpoints c`).
			Scan(&all))
		return all
	}
	before := places()
	at := fmt.Sprintf(`"positions":["%d-1"]`, a.partition())
	for _, to := range []string{`"to":"start"`, `"to":"2026-05-01T00:00:00Z"`, at} {
		got := w.want(202, call{"POST", "/api/v1/replays/rewind", bootstrap, nil, `{"consumer":"meterplex-usage-aggregator","reason":"x",` +
			to + `}`})
		w.same(to, fmt.Sprint(got["state"], got["partitions"], got["waitsFor"], got["endedAt"] != nil), "DONE[] <nil> true")
	}
	w.same("checkpoints", places(), before)
	w.same("in the log", []int{w.events(events.Rewound), w.events(events.ReplayRequested)}, []int{3, 0})
}
