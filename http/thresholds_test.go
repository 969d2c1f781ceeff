package http_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// TestThresholdsOfATenantKey: a tenant's key defines, lists and removes thresholds of its own tenant, each with its event.
func TestThresholdsOfATenantKey(t *testing.T) {
	w, a := newServiceWithAccount(t)
	path := "/api/v1/tenants/" + a.id + "/thresholds"
	create := call{"POST", path, a.key, map[string]string{"Idempotency-Key": "one"}, `{"feature":"api_calls","percent":80}`}
	created := w.want(201, create)
	w.same("the threshold", valuesOf(created, "feature", "percent", "amount"), "api_calls 80 <nil>")
	w.same("a repetition", w.want(201, create), created)
	w.refused(w.do(call{"POST", path, a.key, map[string]string{"Idempotency-Key": "one"}, `{"feature":"api_calls","percent":81}`}), 422,
		"idempotency_key_reused")
	all := w.want(201, call{"POST", path, bootstrap, nil, `{"amount":1000000}`})
	w.same("one of all features", valuesOf(all, "feature", "percent", "amount"), "<nil> <nil> 1000000")
	one := path + "/" + fmt.Sprint(created["id"])
	w.same("read", w.want(200, call{method: "GET", path: one, key: a.key}), created)
	page := w.want(200, call{method: "GET", path: path + "?limit=1", key: a.key})
	w.same("first page", page["data"], []any{created})
	page = w.want(200, call{method: "GET", path: path + "?limit=1&cursor=" + fmt.Sprint(page["nextCursor"]), key: a.key})
	w.same("second page", page["data"], []any{all})
	w.want(204, call{method: "DELETE", path: one, key: a.key})
	w.refused(w.do(call{method: "GET", path: one, key: a.key}), 404, "threshold_not_found")
	w.refused(w.do(call{method: "DELETE", path: one, key: a.key}), 404, "threshold_not_found")
	w.same("the rest", w.want(200, call{method: "GET", path: path, key: a.key})["data"], []any{all})
	var changes string
	w.must(w.pool.QueryRow(w.Context(), `SELECT string_agg(coalesce(payload(l)->>'percent',
		'amount ' || (payload(l)->>'amount')) || coalesce(' removed ' || (payload(l)->>'removed'), ''), ', ' ORDER BY position)
 FROM event_log_rows l WHERE subject = $1 AND tenant_id = $2`, events.ThresholdChanged, a.id).Scan(&changes))
	w.same("events", changes, "80, amount 1000000, 80 removed true")
	w.tooMany(path, a.key)
}

func (w *testService) tooMany(path, key string) {
	w.Helper()
	for n := 1; n < domain.MaxThresholds; n++ {
		w.want(201, call{"POST", path, key, nil, `{"amount":` + strconv.Itoa(n) + `}`})
	}
	w.refused(w.do(call{"POST", path, key, nil, `{"amount":5}`}), 409, "thresholds_limit")
}
