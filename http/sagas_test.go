package http_test

import (
	"testing"
)

// saga stores an open saga that no runner knows, and returns its id.
func (w *testService) saga(tenant, key string) string {
	w.Helper()
	id := newID().String()
	w.exec(`INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, deadline_at, missing, created_at)
 VALUES ($1, 'period_close', $2, $3, 'wait', 'RUNNING', now() + interval '1 hour', now() + interval '15 minutes', '{dead_letters}', now())`,
		id, tenant, key)
	return id
}

func TestSagasAreListedNewestFirst(t *testing.T) {
	w := newTestService(t)
	a, b := w.newAccountlessTenant("A"), w.newAccountlessTenant("B")
	first, second, third := w.saga(a, "1"), w.saga(b, "1"), w.saga(a, "2")
	platform := w.saga("00000000-0000-0000-0000-000000000000", "daily")
	w.exec(`UPDATE sagas SET state = 'COMPLETED', outcome = 'success', ended_at = now() WHERE id = $1`, second)
	for query, want := range map[string]string{
		"": platform + third + second + first, "?tenantId=" + a: third + first, "?state=COMPLETED": second,
		"?kind=period_close&state=RUNNING": platform + third + first,
		"?kind=none":                       "", "?tenantId=" + b + "&state=RUNNING": "",
	} {
		got := ""
		for _, entry := range w.entries(bootstrap, with("/api/v1/sagas"+query, "limit=1")) {
			got += entry["id"].(string)
		}
		w.same("the list of "+query, got, want)
	}
	if body := w.want(200, call{method: "GET", path: "/api/v1/sagas/" + platform, key: bootstrap}); body["tenantId"] != nil ||
		body["outcome"] != nil || body["state"] != "RUNNING" {
		t.Errorf("the platform's saga is %v", body)
	}
	w.refused(w.do(call{method: "GET", path: "/api/v1/sagas?tenantId=" + newID().String(), key: bootstrap}), 404, "tenant_not_found")
	w.refused(w.do(call{method: "GET", path: "/api/v1/sagas/" + newID().String(), key: bootstrap}), 404, "saga_not_found")
}

// newAccountlessTenant creates a tenant without a subscription.
func (w *testService) newAccountlessTenant(name string) string {
	w.Helper()
	return w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, map[string]any{"name": name, "class": "small"}})["id"].(string)
}

func TestARetryOfASagaIsDueAtOnce(t *testing.T) {
	w := newTestService(t)
	tenant := w.newAccountlessTenant("A")
	id, other := w.saga(tenant, "1"), w.saga(tenant, "2")
	deadline, before := w.get("/sagas/" + id)["deadlineAt"], w.stored()
	retry := func(id, body string) call {
		return call{"POST", "/api/v1/sagas/" + id + "/retry", bootstrap, nil, body}
	}
	w.refused(w.do(retry(id, `{"reason":" "}`)), 400, "reason_required")
	w.refused(w.do(retry(id, `{"reason":"r","despite":["not_aggregated"]}`)), 400, "despite_invalid")
	w.refused(w.do(retry(newID().String(), `{"reason":"r"}`)), 404, "saga_not_found")
	w.same("the retry", valuesOf(w.want(202, retry(id, `{"reason":"r","despite":["dead_letters"]}`)), "lastReason", "despite"),
		"r [dead_letters]")
	var due string
	w.must(w.pool.QueryRow(t.Context(), `SELECT concat_ws(' ', next_at <= clock_timestamp(), retries) FROM sagas WHERE id = $1`,
		id).Scan(&due))
	w.same("due, and retries", due, "t 1")
	w.same("the deadline after a retry", w.get("/sagas/" + id)["deadlineAt"], deadline)
	w.same("another saga", valuesOf(w.get("/sagas/"+other), "lastReason", "despite"), "<nil> []")
	w.exec(`UPDATE sagas SET state = 'FAILED', outcome = 'partial', ended_at = now() WHERE id = $1`, id)
	w.refused(w.do(retry(id, `{"reason":"r"}`)), 409, "saga_ended")
	w.same("events stored by a retry", w.stored(), before)
}
