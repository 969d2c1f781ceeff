package http_test

import (
	"testing"
)

// saga stores an open saga that no runner knows, and returns its id.
func (w *testService) saga(tenant, key string) string {
	w.Helper()
	id := newID().String()
	_, err := w.pool.Exec(w.Context(), `INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, deadline_at, missing, created_at)
 VALUES ($1, 'period_close', $2, $3, 'wait', 'RUNNING', now() + interval '1 hour', now() + interval '15 minutes', '{dead_letters}', now())`, id, tenant, key)
	w.must(err)
	return id
}

func TestSagasAreListedNewestFirst(t *testing.T) {
	w := newTestService(t)
	a, b := w.newAccountlessTenant("A"), w.newAccountlessTenant("B")
	first, second, third := w.saga(a, "1"), w.saga(b, "1"), w.saga(a, "2")
	platform := w.saga("00000000-0000-0000-0000-000000000000", "daily")
	_, err := w.pool.Exec(t.Context(), `UPDATE sagas SET state = 'COMPLETED', outcome = 'success', ended_at = now() WHERE id = $1`, second)
	w.must(err)
	for query, want := range map[string]string{
		"": platform + third + second + first, "?tenantId=" + a: third + first, "?state=COMPLETED": second, "?kind=period_close&state=RUNNING": platform + third + first,
		"?kind=none": "", "?tenantId=" + b + "&state=RUNNING": "",
	} {
		got := ""
		for _, entry := range w.entries(bootstrap, with("/api/v1/sagas"+query, "limit=1")) {
			got += entry["id"].(string)
		}
		w.same("the list of "+query, got, want)
	}
	if body := w.want(200, call{method: "GET", path: "/api/v1/sagas/" + platform, key: bootstrap}); body["tenantId"] != nil || body["outcome"] != nil || body["state"] != "RUNNING" {
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
	id, header := w.saga(tenant, "1"), map[string]string{"Idempotency-Key": "k"}
	other := w.saga(tenant, "2")
	deadline := w.want(200, call{method: "GET", path: "/api/v1/sagas/" + id, key: bootstrap})["deadlineAt"]
	retry := func(header map[string]string, body string) call {
		return call{"POST", "/api/v1/sagas/" + id + "/retry", bootstrap, header, body}
	}
	before := w.stored()
	w.refused(w.do(retry(nil, `{"reason":" "}`)), 400, "reason_required")
	w.refused(w.do(retry(nil, `{"reason":"r","despite":["not_aggregated"]}`)), 400, "despite_invalid")
	w.refused(w.do(call{"POST", "/api/v1/sagas/" + newID().String() + "/retry", bootstrap, nil, `{"reason":"r"}`}), 404, "saga_not_found")
	for range 2 {
		got := w.want(202, retry(header, `{"reason":"r","despite":["dead_letters"]}`))
		if despite, _ := got["despite"].([]any); got["lastReason"] != "r" || len(despite) != 1 || despite[0] != "dead_letters" {
			t.Errorf("the retry is answered %v", got)
		}
	}
	w.refused(w.do(retry(header, `{"reason":"other"}`)), 422, "idempotency_key_reused")
	var due bool
	var retries int
	w.must(w.pool.QueryRow(t.Context(), `SELECT next_at <= clock_timestamp(), retries FROM sagas WHERE id = $1`, id).Scan(&due, &retries))
	if !due || retries != 1 {
		t.Errorf("due: %t, after %d retries", due, retries)
	}
	if got := w.want(200, call{method: "GET", path: "/api/v1/sagas/" + id, key: bootstrap}); got["deadlineAt"] != deadline {
		t.Errorf("the retry moved the deadline from %v to %v", deadline, got["deadlineAt"])
	}
	if got := w.want(200, call{method: "GET", path: "/api/v1/sagas/" + other, key: bootstrap}); got["lastReason"] != nil || len(got["despite"].([]any)) > 0 {
		t.Errorf("the retry changed another saga: %v", got)
	}
	_, err := w.pool.Exec(t.Context(), `UPDATE sagas SET state = 'FAILED', outcome = 'partial', ended_at = now() WHERE id = $1`, id)
	w.must(err)
	w.refused(w.do(retry(nil, `{"reason":"r"}`)), 409, "saga_ended")
	if w.stored() != before {
		t.Error("a retry of a saga stored an event")
	}
}
