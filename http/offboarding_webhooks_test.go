package http_test

import (
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// hooks creates an enabled webhook with a delivery that waits, and a disabled one. It returns the paths of both, and of the delivery.
func (w *offboardingWorld) hooks() (enabled, disabled, delivery string) {
	w.Helper()
	path := "/api/v1/tenants/" + w.a.id + "/webhooks"
	create := call{"POST", path, bootstrap, nil, `{"url":"https://example.com/x","events":["period.closed"]}`}
	enabled, disabled = path+"/"+w.want(201, create)["id"].(string), path+"/"+w.want(201, create)["id"].(string)
	w.want(200, call{"PATCH", disabled, bootstrap, nil, `{"status":"DISABLED"}`})
	return enabled, disabled, "/api/v1/deliveries/" + w.want(202, call{"POST", enabled + "/test", bootstrap, nil, nil})["id"].(string)
}

// shown is a webhook with the states of its deliveries.
func (w *offboardingWorld) shown(hook string) string {
	w.Helper()
	got := w.want(200, call{method: "GET", path: hook, key: bootstrap})
	text := valuesOf(got, "status", "reason", "secrets")
	for _, d := range w.want(200, call{method: "GET", path: hook + "/deliveries", key: bootstrap})["data"].([]any) {
		text += fmt.Sprint(" ", d.(map[string]any)["state"])
	}
	return text
}

// changesOfHook lists the requests that change a webhook and its tenant's.
func (w *offboardingWorld) changesOfHook(hook string) []call {
	return []call{
		{"POST", "/api/v1/tenants/" + w.a.id + "/webhooks", bootstrap, nil, `{"url":"https://example.com/y","events":["period.closed"]}`},
		{"PATCH", hook, bootstrap, nil, `{"status":"ENABLED"}`},
		{"PATCH", hook, bootstrap, nil, `{"url":"https://example.com/y"}`},
		{"POST", hook + "/rotate", bootstrap, nil, `{}`},
	}
}

// The webhooks of a tenant end with it, in one transaction: no request is sent any more, and their secrets are deleted. Until then they get
// the events of the offboarding, and only their removal changes them.
func TestP8_WebhooksOfAnArchivedTenantEnd(t *testing.T) {
	w := newOffboardingWorld(t)
	enabled, disabled, delivery := w.hooks()
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
	const last = `{"from":"2020-01-01T00:00:00Z","to":"2020-01-02T00:00:00Z"}`
	sends := []call{{"POST", enabled + "/test", bootstrap, nil, nil}, {"POST", enabled + "/replay", bootstrap, nil, last},
		{"POST", delivery + "/replay", bootstrap, nil, nil}}
	for _, step := range sagaStepsOfOffboarding {
		w.until(step, false)
		for _, c := range w.changesOfHook(enabled) {
			w.refused(w.do(c), 409, "tenant_offboarding")
		}
		for _, c := range sends {
			w.want(202, c)
		}
	}
	w.until("", true)
	w.same("the enabled webhook", w.shown(enabled), "DISABLED the tenant is archived 0 FAILED FAILED FAILED FAILED FAILED FAILED FAILED")
	w.same("the disabled webhook", w.shown(disabled), "DISABLED the tenant is archived 0")
	for _, c := range append(w.changesOfHook(enabled), sends...) {
		w.refused(w.do(c), 409, "tenant_offboarding")
	}
	var ends, secrets int
	w.must(w.pool.QueryRow(w.Context(), `SELECT (SELECT count(*) FROM event_log_rows l WHERE subject = $1 AND tenant_id = $2
		AND payload(l)->>'disabledFor' = 'the tenant is archived'),
 (SELECT count(*) FROM webhook_secrets WHERE tenant_id = $2)`, events.WebhookChanged, w.a.id).Scan(&ends, &secrets))
	w.same("events of the end, and secrets", []int{ends, secrets}, []int{2, 0})
	for _, hook := range []string{enabled, disabled} {
		w.want(204, call{method: "DELETE", path: hook, key: bootstrap})
	}
}
