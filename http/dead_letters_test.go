package http_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
)

// rejections records n events of a feature that the tenant no longer has, and folds the
// result: n dead letters with one cause.
func (w *testService) rejections(p *account, feature string, n int) {
	w.Helper()
	w.rejectionsAt(p, feature, n, time.Now())
}

// rejectionsAt is rejections with a time of usage.
func (w *testService) rejectionsAt(p *account, feature string, n int, at time.Time) {
	w.Helper()
	tenant := uuid.MustParse(p.id)
	var pending []events.Pending
	for range n {
		id := newID().String()
		pending = append(pending, events.Pending{EventID: newID(), Subject: events.UsageRecorded, TenantID: tenant, DedupeKey: events.KeyUsage(id),
			Actor: events.Actor{Type: "system", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: at, Counts: events.Counts{Accepted: 1},
			Payload: json.RawMessage(fmt.Sprintf(`{"amount":1,"eventId":%q,"feature":%q,"timestamp":%q,"type":"usage"}`, id, feature, at.UTC().Format(time.RFC3339Nano)))})
	}
	w.must(pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		_, err := w.log.AppendTx(w.Context(), tx, pending)
		return err
	}))
	w.fold()
}

// execute runs the command router.
func (w *testService) execute() {
	w.Helper()
	letters := &commands.DeadLetters{Store: w.store, Now: time.Now, NewID: newID}
	w.feed(projections.Consumer{Name: events.GroupCommands, Topic: events.TopicCommands, Handler: &store.Commands{Log: w.log, Letters: letters}, MaxPerPartition: projections.MaxWithFollowUps})
	w.fold()
}

func (w *testService) letters(query string) (list []map[string]any) {
	w.Helper()
	for _, d := range w.want(200, call{method: "GET", path: "/api/v1/dead-letters" + query, key: bootstrap})["data"].([]any) {
		list = append(list, d.(map[string]any))
	}
	return list
}

func post(path string, body any) call {
	return call{method: "POST", path: "/api/v1/dead-letters" + path, key: bootstrap, body: body}
}

func TestDeadLetterIsDiscarded(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.letter(a)
	path := "/" + a.letterID
	body := map[string]any{"reason": "a test's own usage"}
	c := post(path+"/discard", body)
	c.header = map[string]string{"Idempotency-Key": "once"}
	first := w.want(200, c)
	if first["id"] != a.letterID || first["status"] != "DISCARDED" || first["position"] == "" {
		t.Errorf("%v", first)
	}
	before := w.stored()
	if again := w.want(200, c); again["position"] != first["position"] || w.stored() != before {
		t.Errorf("the same again: %v", again)
	}
	c.body = map[string]any{"reason": "another"}
	w.refused(w.do(c), 422, "idempotency_key_reused")
	w.refused(w.do(post(path+"/discard", body)), 409, "dead_letter_not_discardable")
	w.refused(w.do(post(path+"/retry", body)), 409, "dead_letter_not_retryable")
	w.fold()
	got := w.want(200, call{method: "GET", path: "/api/v1/dead-letters" + path, key: bootstrap})
	if got["status"] != "DISCARDED" || got["details"].(map[string]any)["closedReason"] != "a test's own usage" || len(got["fingerprint"].(string)) != 32 {
		t.Errorf("%v", got)
	}
	var actor string
	w.must(w.pool.QueryRow(t.Context(), `SELECT o.actor_type FROM event_log_rows l JOIN log_origins o ON o.id = l.origin WHERE l.subject = 15`).Scan(&actor))
	if actor != "api_key" {
		t.Errorf("discarded by %s", actor)
	}
}

// The event of a retried dead letter names the event that its retry appended.
func TestARetriedDeadLetterNamesItsRetry(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.letter(a)
	w.want(202, post("/"+a.letterID+"/retry", nil))
	w.execute()
	list := func(subject string) map[string]any {
		t.Helper()
		found := w.want(200, call{method: "GET", path: "/api/v1/events?tenantId=" + a.id + "&subject=" + subject, key: bootstrap})["data"].([]any)
		if len(found) != 1 {
			t.Fatalf("%s: %v", subject, found)
		}
		return found[0].(map[string]any)
	}
	done, retry := list("meterplex.dead_letters.dead_letter.retried"), list("meterplex.usage.event.retried")
	named := done["payload"].(map[string]any)
	if named["retryEventId"] != retry["eventId"] || named["position"] != retry["position"] || named["deadLetterId"] != a.letterID {
		t.Errorf("%v names the retry %v at %v", named, retry["eventId"], retry["position"])
	}
	graph := w.want(200, call{method: "GET", path: fmt.Sprintf("/api/v1/events/%v/lineage", done["causationId"]), key: bootstrap})
	if text := fmt.Sprint(graph["nodes"]); !strings.Contains(text, fmt.Sprintf("dead letter retried attempt 1 by %v", retry["position"])) {
		t.Error(text)
	}
}

// A payload conflict cannot be retried, but it can be discarded after review.
func TestConflictIsDiscarded(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(event("e", nil)))
	w.ingest(a, batch(event("e", map[string]any{"amount": 2})))
	w.fold()
	id := w.letters("?stage=INGESTION")[0]["id"].(string)
	w.refused(w.do(post("/"+id+"/retry", nil)), 409, "dead_letter_not_retryable")
	w.want(200, post("/"+id+"/discard", map[string]any{"reason": "told the customer"}))
	w.fold()
	if got := w.letters("?status=DISCARDED"); len(got) != 1 {
		t.Errorf("%v", got)
	}
	// A conflicting payload was never accepted, so it is not a term of the identity.
	total := w.want(200, call{method: "GET", path: "/api/v1/system/identity", key: bootstrap})["total"].(map[string]any)
	if fmt.Sprintf("%v %v %v %v", total["accepted"], total["applied"], total["rejected"], total["parked"]) != "1 1 0 0" {
		t.Errorf("%v", total)
	}
}

func TestDeadLettersAreGroupedAndFiltered(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccount("B")
	w.rejections(a, "gone", 3)
	w.rejections(b, "gone", 2)
	w.rejections(b, "never", 1)
	w.ingest(b, batch(event("e", nil)))
	w.ingest(b, batch(event("e", map[string]any{"amount": 2})))
	w.fold()
	groups := w.letters("/groups")
	sizes := ""
	for _, g := range groups {
		sizes += fmt.Sprint(g["stage"], " ", g["feature"], " ", g["count"], " of ", g["tenants"], " ", g["statuses"].(map[string]any)["FAILED"], "; ")
	}
	if len(groups) != 3 || sizes[:26] != "VALIDATION gone 5 of 2 5; " {
		t.Fatal(sizes)
	}
	print := groups[0]["fingerprint"].(string)
	for query, want := range map[string]int{
		"?fingerprint=" + print: 5, "?fingerprint=" + print + "&tenantId=" + b.id: 2, "?feature=never": 1, "?feature=never&stage=INGESTION": 0, "?topic=usage.raw": 7,
		"?consumer=meterplex-usage-aggregator": 0, "?reason=feature_not_found": 6, "?status=RESOLVED": 0, "?to=" + url.QueryEscape("2020-01-01T00:00:00Z"): 0,
		"/groups?feature=never": 1, "/groups?tenantId=" + a.id: 1, "/groups?status=DISCARDED": 0, "/groups?stage=VALIDATION": 2,
	} {
		if got := w.letters(query); len(got) != want {
			t.Errorf("%s: %d instead of %d: %v", query, len(got), want, got)
		}
	}
	sample := w.want(200, call{method: "GET", path: "/api/v1/dead-letters/" + groups[0]["sampleId"].(string), key: bootstrap})
	if sample["fingerprint"] != print || sample["reason"] != groups[0]["reason"] {
		t.Errorf("%v is no sample of %v", sample, groups[0])
	}
	if paged, whole := w.pages(bootstrap, "/api/v1/dead-letters/groups?limit=1"), w.pages(bootstrap, "/api/v1/dead-letters/groups"); len(paged) != 3 || !slices.Equal(paged, whole) {
		t.Errorf("page by page %q instead of %q", paged, whole)
	}
}

func TestBulkOfDeadLetters(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccount("B")
	w.rejections(a, "gone", 30)
	w.rejections(b, "gone", 5)
	first := w.letters("?tenantId=" + a.id + "&limit=1")[0]["id"].(string)
	w.want(200, post("/"+first+"/discard", map[string]any{"reason": "one of them is another matter"}))

	ask := map[string]any{"action": "retry", "reason": "the feature is back", "filter": map[string]any{"feature": "gone"}, "dryRun": true}
	before := w.stored()
	dry := w.want(200, post("/bulk", ask))
	refused := dry["refused"].([]any)
	if fmt.Sprintf("%v %v %d %d", dry["matched"], dry["eligible"], len(dry["sample"].([]any)), len(refused)) != "35 34 20 1" || dry["dryRun"] != true || dry["bulkId"] != nil || w.stored() != before {
		t.Fatalf("%v, %d events", dry, w.stored()-before)
	}
	if no := refused[0].(map[string]any); no["code"] != "dead_letter_not_retryable" || fmt.Sprint(no["count"]) != "1" || no["reason"] == "" {
		t.Errorf("%v", no)
	}
	ask["dryRun"] = false
	c := post("/bulk", ask)
	c.header = map[string]string{"Idempotency-Key": "once"}
	done := w.want(202, c)
	if fmt.Sprintf("%v %v", done["matched"], done["requested"]) != "35 34" || w.stored() != before+1+34 {
		t.Fatalf("%v, %d events", done, w.stored()-before)
	}
	if again := w.want(202, c); fmt.Sprint(again) != fmt.Sprint(done) || w.stored() != before+35 {
		t.Errorf("the same again: %v instead of %v", again, done)
	}
	var causes, tenants int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT tenant_id) FROM event_log_rows WHERE subject = 13 AND causation_id = $1`, done["bulkId"]).Scan(&causes, &tenants))
	if causes != 34 || tenants != 2 {
		t.Errorf("%d requests of %d tenants name the bulk", causes, tenants)
	}
	// Not executed yet: another bulk request skips them.
	if other := w.want(202, post("/bulk", ask)); fmt.Sprintf("%v %v", other["matched"], other["requested"]) != "35 0" {
		t.Errorf("%v", other)
	}
	w.execute()
	if got := w.letters("?status=FAILED&feature=gone"); len(got) != 34 || fmt.Sprint(got[0]["retryCount"]) != "1" {
		t.Errorf("retried and rejected again: %d %v", len(got), got[0])
	}
	w.execute()
	if got := w.letters("?status=FAILED&feature=gone"); fmt.Sprint(got[0]["retryCount"]) != "1" {
		t.Errorf("executed twice: %v", got[0])
	}
	discard := map[string]any{"action": "discard", "reason": "gone for good", "filter": map[string]any{"tenantId": b.id}}
	if done := w.want(202, post("/bulk", discard)); fmt.Sprintf("%v %v", done["matched"], done["requested"]) != "5 5" {
		t.Errorf("%v", done)
	}
	w.fold()
	if got := w.letters("?status=DISCARDED"); len(got) != 6 {
		t.Errorf("%d discarded", len(got))
	}
	if w.want(200, call{method: "GET", path: "/api/v1/system/identity", key: bootstrap})["holds"] != true {
		t.Error("the identity does not hold")
	}
}
