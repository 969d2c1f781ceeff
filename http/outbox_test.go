package http_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

// TestTheOutboxIsShownByPartition: lag, age and error of each partition, and their totals. A rewind counts as lag,
// and not as unpublished.
func TestTheOutboxIsShownByPartition(t *testing.T) {
	w := newTestService(t)
	for _, sql := range []string{
		`UPDATE log_heads SET position = 0`,
		`UPDATE relay_cursors SET position = 0, owner = 'other', lease_until = now() + interval '1 hour'`,
		`UPDATE log_heads SET position = 10 WHERE partition IN (3, 4, 5)`,
		`UPDATE relay_cursors SET position = 4, owner = NULL, lease_until = '-infinity', attempts = 7, last_error = 'no broker answers',
			last_attempt_at = now() WHERE partition = 3`,
		`UPDATE relay_cursors SET position = 2, furthest = 9, owner = 'frozen', lease_until = now() - interval '1 minute'
			WHERE partition = 4`,
		`UPDATE relay_cursors SET position = 1, furthest = 10, last_attempt_at = now() WHERE partition = 5`,
		`INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin, partition,
			topic, subject, dedupe_key, body)
		 SELECT n, 0, now() - interval '1 min' * (20 - n - p), now(), gen_random_uuid(), gen_random_uuid(), 0, 1, p, 1, 1, n::text, '{}'
		 FROM generate_series(1, 10) n, generate_series(3, 5) p ON CONFLICT DO NOTHING`,
	} {
		w.exec(sql)
	}
	var got struct {
		Totals     struct{ LagEvents, Unpublished, OldestUnpublishedSeconds, Unleased, Failing float64 }
		Partitions []map[string]any
	}
	raw, err := json.Marshal(w.want(200, call{method: "GET", path: "/api/v1/outbox", key: bootstrap}))
	w.must(err)
	w.must(json.Unmarshal(raw, &got))
	if s := got.Totals; s.LagEvents != 6+8+9 || s.Unpublished != 6+1 || s.OldestUnpublishedSeconds < 12*60 ||
		s.OldestUnpublishedSeconds > 13*60 || s.Unleased != 2 || s.Failing != 1 {
		t.Errorf("totals %+v", s)
	}
	if len(got.Partitions) != events.Partitions {
		t.Fatalf("%d partitions", len(got.Partitions))
	}
	for p, want := range map[int]string{
		3: "3-10 3-4 6 6 age <nil> false <nil> 7 no broker answers failed", 4: "4-10 4-2 8 1 age frozen false until 0 <nil> <nil>",
		5: "5-10 5-1 9 0 <nil> other true until 0 <nil> failed", 31: "31-0 31-0 0 0 <nil> other true until 0 <nil> <nil>",
	} {
		row := got.Partitions[p]
		for member, is := range map[string]string{"oldestUnpublishedAt": "age", "leaseUntil": "until", "lastFailedAt": "failed"} {
			if text, ok := row[member].(string); ok && strings.HasSuffix(text, "Z") {
				row[member] = is
			}
		}
		shown := fmt.Sprint(row["head"], " ", row["cursor"], " ", row["lagEvents"], " ", row["unpublished"], " ",
			row["oldestUnpublishedAt"], " ",
			row["owner"], " ",
			row["leased"], " ", row["leaseUntil"], " ", row["attempts"], " ", row["lastError"], " ", row["lastFailedAt"])
		w.same(fmt.Sprint("partition ", p), shown, want)
	}
}

// withhold inserts a withheld record of each of n positions, a second apart, from an hour ago on.
func (w *testService) withhold(p *account, topic events.Topic, from, n int) {
	w.Helper()
	w.exec(`INSERT INTO withheld_records (partition, position, topic, tenant_id, dead_letter_id, reason, late, withheld_at)
 SELECT $1, n, $2, $3, CASE WHEN n % 2 = 0 THEN gen_random_uuid() END, 'too large', n % 2 = 1,
 now() - interval '1 hour' + interval '1 second' * n
 FROM generate_series($4::int, $5) n`, p.partition(), topic, p.id, from, from+n-1)
}

// TestWithheldRecordsAreListedNewestFirst: in pages, by tenant and by topic, with the subject of an event that
// the log has.
func TestWithheldRecordsAreListedNewestFirst(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccountIn("B", func(p int16) bool { return p != a.partition() })
	at := verdicts(w.ingest(a, batch(event("1", nil))))[0]["position"].(string)
	recorded, err := events.ParsePosition(at)
	w.must(err)
	w.withhold(a, events.TopicUsageRaw, int(recorded.Number), 1)
	w.withhold(a, events.TopicUsageValidated, 1000, 7)
	w.withhold(b, events.TopicUsageRaw, 1001, 7)
	read := func(query string) []map[string]any {
		return w.entries(bootstrap, "/api/v1/outbox/withheld?limit=3"+query)
	}
	for query, want := range map[string]int{
		"": 15, "&tenantId=" + a.id: 8, "&topic=usage.raw": 8, "&topic=meterplex.billing": 0, "&topic=usage.validated&tenantId=" + a.id: 7,
		"&topic=usage.validated&tenantId=" + b.id: 0,
	} {
		rows := read(query)
		times := make([]time.Time, len(rows))
		for i, row := range rows {
			when, err := time.Parse(time.RFC3339Nano, row["withheldAt"].(string))
			w.must(err)
			times[i] = when
			if late := row["late"].(bool); late != (row["deadLetterId"] == nil) || row["reason"] != "too large" {
				t.Errorf("%v", row)
			}
		}
		if !slices.IsSortedFunc(times, func(x, y time.Time) int { return y.Compare(x) }) || len(rows) != want {
			t.Errorf("%q: %d rows, want %d, at %v", query, len(rows), want, times)
		}
	}
	first := read("&topic=usage.raw&tenantId=" + a.id)[0]
	if first["position"] != at || first["subject"] != "meterplex.usage.event.recorded.v1" || first["topic"] != "usage.raw" ||
		first["tenantId"] != a.id {
		t.Errorf("%v", first)
	}
	cursor := w.want(200, call{method: "GET", path: "/api/v1/outbox/withheld?limit=3", key: bootstrap})["nextCursor"].(string)
	w.refused(w.do(call{method: "GET", path: "/api/v1/outbox/withheld?topic=usage.raw&cursor=" + cursor, key: bootstrap}), 400,
		"cursor_invalid")
	w.refused(w.do(call{method: "GET", path: "/api/v1/outbox/withheld?tenantId=" + newID().String(), key: bootstrap}), 404,
		"tenant_not_found")
}

// TestWithheldRecordsOfEveryTopicCanBeSelected: the description lists the topics of the log.
func TestWithheldRecordsOfEveryTopicCanBeSelected(t *testing.T) {
	w := newTestService(t)
	for _, topic := range events.Topics() {
		got := w.do(call{method: "GET", path: "/api/v1/outbox/withheld?topic=" + topic.Name, key: bootstrap})
		if want := map[bool]int{true: 400, false: 200}[topic.Topic.Outside()]; got.status != want {
			t.Errorf("%s: %d %s", topic.Name, got.status, got.body)
		}
	}
}
