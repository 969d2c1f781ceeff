package http_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/edge"
)

// TestTheLogHoldsTheReasonOfEachChange: a change whose body names no reason takes it from a header, and the event of the change holds it. Each route that takes
// the header is called.
func TestTheLogHoldsTheReasonOfEachChange(t *testing.T) {
	w, a := newServiceWithAccount(t)
	reasoned := map[string]bool{}
	for _, r := range http.Routes() {
		if r.Reasoned {
			reasoned[r.Name()] = true
		}
	}
	n := 0
	do := func(method, path, route string, body any) map[string]any {
		t.Helper()
		n++
		reason := fmt.Sprintf("because Ü%d", n)
		got := w.do(call{method, path, bootstrap, map[string]string{edge.HeaderReason: url.PathEscape(reason)}, body})
		if got.status >= 300 {
			t.Fatalf("%s %s gives %d: %s", method, path, got.status, got.body)
		}
		if !reasoned[method+" "+route] {
			t.Errorf("%s %s does not take the header", method, route)
		}
		delete(reasoned, method+" "+route)
		if held := linesWith(w.loggedEvents(nil), `"reason":"`+reason+`"`); len(held) == 0 {
			t.Errorf("%s %s: no event holds the reason", method, route)
		}
		if len(got.body) == 0 {
			return nil
		}
		var answer map[string]any
		w.must(json.Unmarshal(got.body, &answer))
		return answer
	}
	tenant, own := "/api/v1/tenants/"+a.id, "/api/v1/tenants/{tenantId}"
	do("POST", "/api/v1/tenants", "/api/v1/tenants", map[string]any{"name": "B", "class": "small"})
	do("PATCH", tenant, own, map[string]any{"name": "C"})
	for path, route := range map[string]string{tenant + "/api-keys": own + "/api-keys", "/api/v1/operator-keys": "/api/v1/operator-keys"} {
		scopes := map[bool]string{true: "admin", false: "usage:read"}[strings.Contains(path, "operator")]
		key := do("POST", path, route, map[string]any{"name": "k", "scopes": []string{scopes}})
		next := do("POST", path+"/"+key["id"].(string)+"/rotate", route+"/{keyId}/rotate", map[string]any{"overlapSeconds": 0})
		do("DELETE", path+"/"+next["id"].(string), route+"/{keyId}", nil)
	}
	do("PUT", "/api/v1/features/extra", "/api/v1/features/{lookupKey}", map[string]any{"name": "Extra", "type": "METERED"})
	do("PUT", "/api/v1/prices/extra", "/api/v1/prices/{priceKey}", map[string]any{"name": "Extra", "currency": "EUR", "model": "per_unit", "microUnits": 5})
	do("PUT", "/api/v1/plans/extra", "/api/v1/plans/{key}", map[string]any{"name": "Extra", "entitlements": []any{}})
	do("PATCH", tenant+"/subscriptions/"+a.subscription, own+"/subscriptions/{subscriptionId}", map[string]any{"status": "CANCELLED"})
	do("POST", tenant+"/subscriptions", own+"/subscriptions", map[string]any{"plan": "extra"})
	threshold := do("POST", tenant+"/thresholds", own+"/thresholds", map[string]any{"percent": 90})
	do("DELETE", tenant+"/thresholds/"+threshold["id"].(string), own+"/thresholds/{thresholdId}", nil)
	hook := do("POST", tenant+"/webhooks", own+"/webhooks", map[string]any{"url": "https://example.com/x", "events": []string{"threshold.crossed"}})["id"].(string)
	do("PATCH", tenant+"/webhooks/"+hook, own+"/webhooks/{webhookId}", map[string]any{"events": []string{"period.closed"}})
	do("POST", tenant+"/webhooks/"+hook+"/rotate", own+"/webhooks/{webhookId}/rotate", map[string]any{"overlapSeconds": 0})
	do("DELETE", tenant+"/webhooks/"+hook, own+"/webhooks/{webhookId}", nil)
	do("PUT", tenant+"/billing", own+"/billing", map[string]any{"provider": "stripe", "customer": "cus_NffrFeUfNV2Hib"})
	do("DELETE", tenant+"/billing", own+"/billing", nil)
	for name := range reasoned {
		t.Errorf("%s takes the header and is not called", name)
	}
}

// TestReasonsAreBounded: 500 wide characters are accepted by headers and bodies, though they have 2,000 bytes; others are refused before anything changes.
func TestReasonsAreBounded(t *testing.T) {
	w := newTestService(t)
	tenant := "/api/v1/tenants/" + w.newAccountlessTenant("A")
	wide, before := strings.Repeat("😀", 500), w.stored()
	named := func(reason string) call {
		return call{"PATCH", tenant, bootstrap, map[string]string{edge.HeaderReason: reason}, map[string]any{"name": "B"}}
	}
	offboard := call{"POST", tenant + "/offboard", bootstrap, nil, map[string]any{"reason": wide + "x"}}
	for _, reason := range []string{"%20%20", "a%0Ab", "a%E2%80%AEb", "%FF", "100%", url.PathEscape(wide + "x")} {
		w.refused(w.do(named(reason)), 400, "reason_invalid")
	}
	w.refused(w.do(offboard), 400, "reason_invalid")
	w.same("stored", w.stored(), before)
	w.want(200, named(url.PathEscape(wide)))
	offboard.body = map[string]any{"reason": wide}
	w.want(202, offboard)
}
