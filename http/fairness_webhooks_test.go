package http_test

import (
	"testing"
)

// Reads of a tenant's webhooks and thresholds with its own key take the connections of that tenant, and none of the operators'.
func TestP9_ReadsOfWebhooksAndThresholdsAreOfTheirTenant(t *testing.T) {
	f := newFairnessFixture(t)
	tenant := "/api/v1/tenants/" + f.a.id
	hook := f.want(201, call{"POST", tenant + "/webhooks", f.a.key, nil, `{"url":"https://example.com/x","events":["push.failed"]}`})
	limit := f.want(201, call{"POST", tenant + "/thresholds", f.a.key, nil, `{"percent":80}`})
	get := func(path string) call { return call{method: "GET", path: path, key: f.a.key} }
	webhook, threshold := tenant+"/webhooks/"+hook["id"].(string), tenant+"/thresholds/"+limit["id"].(string)
	for table, reads := range map[string][]call{
		"webhooks":           {get(tenant + "/webhooks"), get(webhook)},
		"webhook_deliveries": {get(webhook + "/deliveries")},
		"thresholds":         {get(tenant + "/thresholds"), get(threshold)},
	} {
		end := f.hangOn(table, 32, reads...)
		for range 3 {
			f.want(200, call{method: "GET", path: "/api/v1/tenants", key: bootstrap})
			f.want(200, call{method: "GET", path: "/api/v1/usage/aggregates?tenantId=" + f.b.id, key: bootstrap})
			f.want(200, call{method: "GET", path: "/api/v1/usage/aggregates", key: f.b.key})
		}
		f.refused(f.do(call{method: "GET", path: "/api/v1/usage/aggregates", key: f.a.key}), 503, "overloaded")
		if got := end(); got[200] != readConnections/4 || got[503] != 32-readConnections/4 {
			t.Errorf("%s: answers by status: %v", table, got)
		}
		f.nothingHeld()
	}
}
