package http_test

import (
	"bytes"
	"testing"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/auth"
)

// TestP9_TenantsDoNotReadWhatOperatorsWrite: no read of a tenant's key shows the reasons, notes and ids that operators wrote about it,
// their keys and Idempotency-Keys, or the instance that recorded an event. Operators read them.
func TestP9_TenantsDoNotReadWhatOperatorsWrite(t *testing.T) {
	m := newIsolationFixture(t)
	key, keyID := m.key("", nil, "admin")
	tenant := "/api/v1/tenants/" + m.a.id
	because := func(idempotencyKey string) map[string]string {
		return map[string]string{"Meterplex-Reason": "operators-word", "Idempotency-Key": "operators-key-" + idempotencyKey}
	}
	m.want(200, call{"PATCH", tenant, key, because("1"), `{"metadata":{"note":"operators-word"},"externalIds":["operators-word"]}`})
	m.want(200, call{"PUT", tenant + "/billing", key, because("2"), `{"provider":"stripe","customer":"cus_operatorsword"}`})
	m.want(201, call{"POST", tenant + "/thresholds", key, because("3"), `{"amount":5}`})
	m.want(200, call{"PATCH", tenant + "/webhooks/" + m.ids["webhookId"], key, because("4"), `{"events":["push.failed"]}`})
	m.want(200, call{"POST", "/api/v1/adjustments/" + m.ids["adjustmentId"] + "/approve", key, because("5"), `{"reason":"operators-word"}`})
	m.want(202, call{"POST", "/api/v1/dead-letters/" + m.a.letterID + "/retry", key, because("6"), `{"reason":"operators-word"}`})
	m.want(202, call{"POST", tenant + "/offboard", key, because("7"), `{"reason":"operators-word"}`})
	m.fold()
	secrets := []string{"operators-word", "cus_operatorsword", keyID, `"producedBy"`, "operators-key-"}
	for _, secret := range secrets {
		if log := m.do(call{method: "GET", path: "/api/v1/events/export?tenantId=" + m.a.id, key: key}); !bytes.Contains(log.body,
			[]byte(secret)) {
			t.Fatalf("the operators' log has no %s", secret)
		}
	}
	for _, route := range http.Routes() {
		if c, _ := m.sample(route); route.Method == "GET" && (route.Who == auth.Either || route.Who == auth.Tenant) {
			c.key = m.a.key
			got := m.do(c)
			for _, secret := range secrets {
				if bytes.Contains(got.body, []byte(secret)) {
					t.Errorf("%s shows %s", c.path, secret)
				}
			}
			if got.status != 200 {
				t.Errorf("%s: %d %s", c.path, got.status, got.body)
			}
		}
	}
}
