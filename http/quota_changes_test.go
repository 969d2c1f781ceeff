package http_test

import (
	"fmt"
	"strings"
	"testing"
)

const checkPath = "/api/v1/entitlements/api_calls/check"

// decisions are requests for one unit of api_calls by each route, and their outcomes.
func (w *testService) decisions(a *account, n int) map[string]func() string {
	code := func(got answer) string {
		_, code, _ := strings.Cut(string(got.body), `"code":"`)
		code, _, _ = strings.Cut(code, `"`)
		return code
	}
	outcome := func(got answer) string {
		switch {
		case got.status < 300:
			return "granted"
		case got.status == 401:
			return "unauthenticated"
		}
		return code(got)
	}
	return map[string]func() string{
		"check":   func() string { return outcome(w.do(call{method: "GET", path: checkPath, key: a.key})) },
		"consume": func() string { return outcome(w.do(consuming(a.key, "api_calls", fmt.Sprint("c", n), 1))) },
		"hold":    func() string { return outcome(w.do(holding(a.key, fmt.Sprint("h", n), 1, 600))) },
		"enforced ingest": func() string {
			got := w.do(call{"POST", "/api/v1/usage/events", a.key, nil, batch(event(fmt.Sprint("e", n), nil))})
			if got.status != 202 || strings.Contains(string(got.body), `"accepted":1`) {
				return outcome(got)
			}
			return code(got)
		},
	}
}

// A change holds at once for decisions on another instance, which has cached the state before it.
func TestP7_AChangeHoldsAtOnceForEachDecision(t *testing.T) {
	w := newTestService(t)
	other := w.secondInstance()
	w.catalogue()
	w.putPlan(enforcing(1000))
	a := w.newAccount("A")
	n := 0
	expect := func(what, want string) {
		t.Helper()
		n++
		for route, decide := range other.decisions(a, n) {
			if got := decide(); route != "check" && got != want {
				t.Errorf("%s, %s: %s instead of %s", what, route, got, want)
			}
		}
	}
	for range 5 {
		w.putPlan(enforcing(1000))
		w.applyPlan(a)
		expect("before", "granted")
		w.putPlan(enforcing(3))
		expect("a limit that is not applied", "granted")
		w.applyPlan(a)
		expect("a lowered limit", "quota_exceeded")
	}
	w.putPlan(map[string]any{"feature": "storage", "limit": nil})
	w.applyPlan(a)
	expect("without the feature", "feature_not_found")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"status":"CANCELLED"}`})
	expect("after the end", "no_active_subscription")
	w.putPlan(enforcing(1))
	a = w.newAccount("B")
	w.want(200, consuming(a.key, "api_calls", "used", 1))
	expect("at the limit", "quota_exceeded")
	w.putPlan(map[string]any{"limit": 1, "limitBehavior": "SOFT"})
	w.applyPlan(a)
	expect("a SOFT limit", "granted")
}

// An instance caches keys, the status of a tenant, and the enforcement of a plan for a second at most.
func TestP7_ChangesHoldForDecisionsOfAnotherInstanceWithinASecond(t *testing.T) {
	w := newTestService(t)
	other := w.secondInstance()
	other.confirmGrants()
	w.catalogue()
	w.putPlan(map[string]any{"limit": 1_000_000})
	accounts, n := map[string]*account{}, 0
	for _, route := range []string{"consume", "hold", "enforced ingest", "check"} {
		accounts[route] = w.newAccount(route)
	}
	w.fold()
	within := func(what, want string) {
		t.Helper()
		for route, a := range accounts {
			if route != "check" || want != "quota_exceeded" && want != "no_active_subscription" { // which checks know once they are folded
				withinASecond(t, what+", "+route, want, func() string { n++; return other.decisions(a, n)[route]() })
			}
		}
	}
	each := func(change func(tenant string, a *account)) {
		for _, a := range accounts {
			change("/api/v1/tenants/"+a.id, a)
		}
	}
	status := func(path, status string) {
		w.want(200, call{"PATCH", path, bootstrap, nil, `{"status":"` + status + `"}`})
	}
	within("new", "granted")
	w.putPlan(enforcing(1))
	each(func(_ string, a *account) { w.want(200, consuming(a.key, "api_calls", "used", 1)); w.applyPlan(a) })
	within("enforced", "quota_exceeded")
	w.putPlan(enforcing(1_000_000))
	each(func(_ string, a *account) { w.applyPlan(a) })
	within("raised", "granted")
	each(func(tenant string, _ *account) { status(tenant, "SUSPENDED") })
	within("suspended", "tenant_suspended")
	each(func(tenant string, _ *account) { status(tenant, "ACTIVE") })
	within("active again", "granted")
	each(func(tenant string, a *account) { status(tenant+"/subscriptions/"+a.subscription, "CANCELLED") })
	within("cancelled", "no_active_subscription")
	each(func(tenant string, a *account) {
		w.want(204, call{method: "DELETE", path: tenant + "/api-keys/" + a.keyID, key: bootstrap})
	})
	within("revoked", "unauthenticated")
}
