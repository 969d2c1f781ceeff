package http_test

import (
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// replayBodies returns replay requests that must be refused.
func (w *testService) replayBodies(a *account) (list []badInput) {
	add := func(path, body string, status int, code string) {
		list = append(list, badInput{"POST " + path + " " + body[:min(len(body), 80)], call{"POST", "/api/v1/replays" + path, bootstrap, nil, body}, status, code})
	}
	partition := a.partition()
	for body, code := range map[string]string{
		`{}`: "member_missing", `{"topic":"usage.raw"}`: "member_missing", `{"reason":"x"}`: "member_missing",
		`{"topic":"usage.raw","reason":""}`:                                                                                        "reason_invalid",
		`{"topic":"usage.raw","reason":" ","fromTime":"2026-05-01T00:00:00Z"}`:                                                     "reason_required",
		`{"topic":"usage.raw","reason":"x"}`:                                                                                       "range_invalid",
		`{"topic":"usage.commands","reason":"x","from":"1-1","to":"1-1"}`:                                                          "topic_invalid",
		`{"topic":"nothing","reason":"x","from":"1-1","to":"1-1"}`:                                                                 "topic_invalid",
		`{"topic":"usage.raw","reason":"x","from":"1-1"}`:                                                                          "range_invalid",
		`{"topic":"usage.raw","reason":"x","from":"1-2","to":"1-1"}`:                                                               "range_invalid",
		`{"topic":"usage.raw","reason":"x","from":"1-1","to":"2-1"}`:                                                               "range_invalid",
		`{"topic":"usage.raw","reason":"x","from":"1-0","to":"1-1"}`:                                                               "range_invalid",
		`{"topic":"usage.raw","reason":"x","from":"32-1","to":"32-1"}`:                                                             "position_invalid",
		`{"topic":"usage.raw","reason":"x","from":"01-1","to":"1-1"}`:                                                              "position_invalid",
		`{"topic":"usage.raw","reason":"x","from":"1-99999","to":"1-99999"}`:                                                       "range_invalid",
		`{"topic":"usage.raw","reason":"x","from":"1-1","to":"1-1","fromTime":"2026-05-01"}`:                                       "time_invalid",
		`{"topic":"usage.raw","reason":"x","fromTime":"2026-05-01T00:00:00"}`:                                                      "time_invalid",
		`{"topic":"usage.raw","reason":"x","fromTime":"2026-05-01T00:00:00Z","toTime":"2026-05-01T00:00:00Z"}`:                     "range_invalid",
		fmt.Sprintf(`{"topic":"usage.raw","reason":"x","from":"%[1]d-1","to":"%[1]d-1","tenantId":%[2]q}`, (partition+1)%32, a.id): "range_invalid",
	} {
		add("", body, 400, code)
	}
	add("", `{"topic":"usage.raw","reason":"x","fromTime":"2026-05-01T00:00:00Z","tenantId":"`+newID().String()+`"}`, 404, "tenant_not_found")
	add("", `{"topic":"usage.raw","reason":"x","fromTime":"2026-05-01T00:00:00Z","tenantId":"nobody"}`, 404, "tenant_not_found")
	for body, code := range map[string]string{
		`{}`: "member_missing", `{"reason":"x","to":"end"}`: "to_invalid", `{"reason":"x","to":"2026-05-01"}`: "to_invalid",
		`{"reason":"x","to":"start","positions":["1-1"]}`:                              "to_invalid",
		`{"reason":"x","positions":[]}`:                                                "positions_invalid",
		`{"reason":"x","positions":["1-1","1-2"]}`:                                     "positions_invalid",
		`{"reason":"x","positions":["1-0"]}`:                                           "positions_invalid",
		`{"reason":"x","positions":["x"]}`:                                             "position_invalid",
		`{"reason":"x","consumer":"meterplex-usage-aggregator"}`:                       "to_invalid",
		`{"reason":"x","consumer":"meterplex-usage-aggregator","to":"consumers"}`:      "to_invalid",
		`{"reason":"x","consumer":"meterplex-usage-aggregator","positions":["1-999"]}`: "positions_invalid",
		`{"reason":"x","consumer":"meterplex-usage-commands","positions":["1-1"]}`:     "positions_invalid",
	} {
		add("/rewind", body, 400, code)
	}
	add("/rewind", `{"reason":"x","consumer":"meterplex-entitlement-reads","to":"start"}`, 404, "consumer_not_found")
	add("/rewind", `{"reason":"x","positions":["1-99999"]}`, 409, "rewind_forward")
	return list
}

// published moves the relay's cursors to the heads, like a relay.
func (w *testService) published() {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), `UPDATE relay_cursors c SET position = h.position FROM log_heads h WHERE h.partition = c.partition`)
	w.must(err)
}

func TestReplayRequestsAreIdempotent(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	for n := range 5 {
		w.ingest(a, batch(event(fmt.Sprint("e", n), nil)))
	}
	w.published()
	header := map[string]string{"Idempotency-Key": "one"}
	body := `{"topic":"usage.raw","tenantId":"` + a.id + `","fromTime":"2026-05-01T00:00:00Z","reason":"a reader lost its disk"}`
	first := w.want(202, call{"POST", "/api/v1/replays", bootstrap, header, body})
	again := w.want(202, call{"POST", "/api/v1/replays", bootstrap, header, body})
	if first["id"] != again["id"] || first["state"] != "RUNNING" || fmt.Sprint(first["remaining"]) == "0" {
		t.Errorf("%v\n%v", first, again)
	}
	w.refused(w.do(call{"POST", "/api/v1/replays", bootstrap, header, `{"topic":"usage.raw","fromTime":"2026-05-01T00:00:00Z","reason":"x"}`}), 422, "idempotency_key_reused")
	got := w.want(200, call{method: "GET", path: "/api/v1/replays/" + first["id"].(string), key: bootstrap})
	parts, _ := got["partitions"].([]any)
	if len(parts) != 1 || got["tenantId"] != a.id || fmt.Sprint(got["remaining"]) == "0" {
		t.Errorf("%v", got)
	}
	if n := w.events(50); n != 1 {
		t.Errorf("%d requests are in the log", n)
	}
	w.refused(w.do(call{method: "GET", path: "/api/v1/replays/" + newID().String(), key: bootstrap}), 404, "replay_not_found")
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
	seen, path := map[string]bool{}, "/api/v1/replays?limit=2"
	for path != "" {
		page := w.want(200, call{method: "GET", path: path, key: bootstrap})
		for _, r := range page["data"].([]any) {
			seen[r.(map[string]any)["id"].(string)] = true
		}
		next, more := page["nextCursor"].(string)
		if path = ""; more {
			path = "/api/v1/replays?limit=2&cursor=" + next
		}
	}
	if len(seen) != 6 || w.events(52) != 6 {
		t.Errorf("%d replays are listed, %d in the log", len(seen), w.events(52))
	}
}
