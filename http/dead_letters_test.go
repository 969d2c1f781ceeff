package http_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/repair"
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
		pending = append(pending, events.Pending{EventID: newID(), Subject: events.UsageRecorded, TenantID: tenant,
			DedupeKey: events.KeyUsage(id),
			Actor:     events.Actor{Type: "system", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: at,
			Counts: events.Counts{Accepted: 1},
			Payload: json.RawMessage(fmt.Sprintf(`{"amount":1,"eventId":%q,"feature":%q,"timestamp":%q,"type":"usage"}`, id, feature,
				at.UTC().Format(time.RFC3339Nano)))})
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
	letters := &repair.DeadLetters{Store: w.store, Now: time.Now, NewID: newID}
	w.feed(projections.Consumer{Name: events.GroupCommands, Topic: events.TopicCommands,
		Handler: &store.Commands{Log: w.log, Letters: letters}, MaxPerPartition: projections.MaxWithFollowUps})
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
	w.holds("the answer", fmt.Sprint(graph["nodes"]), fmt.Sprintf("dead letter retried attempt 1 by %v", retry["position"]))
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
		sizes += fmt.Sprint(g["stage"], " ", g["feature"], " ", g["count"], " of ", g["tenants"], " ",
			g["statuses"].(map[string]any)["FAILED"],
			"; ")
	}
	if len(groups) != 3 || sizes[:26] != "VALIDATION gone 5 of 2 5; " {
		t.Fatal(sizes)
	}
	print := groups[0]["fingerprint"].(string)
	for query, want := range map[string]int{
		"?fingerprint=" + print: 5, "?fingerprint=" + print + "&tenantId=" + b.id: 2, "?feature=never": 1,
		"?feature=never&stage=INGESTION":       0,
		"?topic=usage.raw":                     7,
		"?consumer=meterplex-usage-aggregator": 0, "?reason=feature_not_found": 6, "?status=RESOLVED": 0,
		"?to=" + url.QueryEscape("2020-01-01T00:00:00Z"): 0,
		"/groups?feature=never":                          1, "/groups?tenantId=" + a.id: 1, "/groups?status=DISCARDED": 0,
		"/groups?stage=VALIDATION": 2,
	} {
		w.same(query, len(w.letters(query)), want)
	}
	sample := w.want(200, call{method: "GET", path: "/api/v1/dead-letters/" + groups[0]["sampleId"].(string), key: bootstrap})
	if sample["fingerprint"] != print || sample["reason"] != groups[0]["reason"] {
		t.Errorf("%v is no sample of %v", sample, groups[0])
	}
	if paged, whole := w.pages(bootstrap, "/api/v1/dead-letters/groups?limit=1"),
		w.pages(bootstrap, "/api/v1/dead-letters/groups"); len(paged) != 3 || !slices.Equal(paged, whole) {
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
	w.same("a dry run", valuesOf(dry, "matched", "eligible", "dryRun", "bulkId")+fmt.Sprint(len(dry["sample"].([]any)), w.stored()-before),
		"35 34 true <nil>20 0")
	w.same("refused by it", valuesOf(dry["refused"].([]any)[0].(map[string]any), "code", "count"), "dead_letter_not_retryable 1")
	ask["dryRun"] = false
	done := w.want(202, post("/bulk", ask))
	w.same("a bulk", valuesOf(done, "matched", "requested")+fmt.Sprint(w.stored()-before), "35 3435")
	var causes string
	w.must(w.pool.QueryRow(t.Context(),
		`SELECT concat_ws(' ', count(*), count(DISTINCT tenant_id)) FROM event_log_rows WHERE subject = 13 AND causation_id = $1`,
		done["bulkId"]).Scan(&causes))
	w.same("requests that name the bulk, and their tenants", causes, "34 2")
	w.same("another bulk before they are executed", valuesOf(w.want(202, post("/bulk", ask)), "matched", "requested"), "35 0")
	for range 2 { // each is executed once
		w.execute()
		failed := w.letters("?status=FAILED&feature=gone")
		w.same("retried and rejected again", fmt.Sprint(len(failed), " ", failed[0]["retryCount"]), "34 1")
	}
	discard := map[string]any{"action": "discard", "reason": "gone for good", "filter": map[string]any{"tenantId": b.id}}
	w.same("discards", valuesOf(w.want(202, post("/bulk", discard)), "matched", "requested"), "5 5")
	w.fold()
	w.same("discarded", len(w.letters("?status=DISCARDED")), 6)
	w.same("the identity holds", w.get("/system/identity")["holds"], true)
}
