package http_test

import (
	"strings"
	"testing"
)

// TestWebhooksOfATenantKey: a tenant's key creates, changes and removes webhooks of its own tenant, and sees no secret again.
func TestWebhooksOfATenantKey(t *testing.T) {
	w, a := newServiceWithAccount(t)
	path := "/api/v1/tenants/" + a.id + "/webhooks"
	create := call{"POST", path, a.key, map[string]string{"Idempotency-Key": "one"},
		`{"url":"https://example.com/x","events":["push.failed","period.closed"]}`}
	created := w.want(201, create)
	secret, _ := created["secret"].(string)
	if !strings.HasPrefix(secret, "whsec_") || created["status"] != "ENABLED" {
		t.Fatalf("%v", created)
	}
	if again := w.want(200, create); again["id"] != created["id"] || again["secret"] != nil {
		t.Errorf("%v", again)
	}
	one := path + "/" + created["id"].(string)
	for _, c := range []call{{"GET", path, a.key, nil, nil}, {"GET", one, a.key, nil, nil}, {"GET", one, bootstrap, nil, nil},
		{"PATCH", one, a.key, nil, `{"status":"DISABLED"}`}, {"GET", one + "/deliveries", a.key, nil, nil}} {
		if got := w.do(c); got.status != 200 || strings.Contains(string(got.body), secret) {
			t.Errorf("%s %s: %d %s", c.method, c.path, got.status, got.body)
		}
	}
	w.refused(w.do(call{"POST", one + "/test", a.key, nil, nil}), 409, "webhook_disabled")
	w.want(200, call{"PATCH", one, a.key, nil, `{"status":"ENABLED"}`})
	w.want(202, call{"POST", one + "/test", a.key, nil, nil})
	w.want(204, call{method: "DELETE", path: one, key: a.key})
	w.refused(w.do(call{method: "GET", path: one, key: a.key}), 404, "webhook_not_found")
	w.refused(w.do(call{method: "DELETE", path: one, key: a.key}), 404, "webhook_not_found")
}
