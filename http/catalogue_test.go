package http_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/internal/logtest"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
)

// Checks are folded from the log. The answer to a change waits until checks see it.
func TestChangeOfASubscriptionHoldsOnceItIsAnswered(t *testing.T) {
	w := newTestService(t, func(s *http.Server) { s.Settle = time.Minute })
	w.catalogue()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := w.runner(entitlements.Consumer(models.DefaultFolds().Entitlements, newID))
		_ = logtest.Follow(ctx, r, 50*time.Millisecond, nil)
	}()
	defer func() { stop(); <-done }()
	a := w.newAccount("A")
	granted := func(want int) {
		t.Helper()
		w.same("entitlements", len(w.want(200, call{method: "GET", path: "/api/v1/entitlements", key: a.key})["data"].([]any)), want)
	}
	granted(3)
	for range 3 {
		w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil,
			map[string]any{"status": "PAST_DUE"}})
		granted(0)
		w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil,
			map[string]any{"status": "ACTIVE"}})
		granted(3)
	}
}

func TestEntitlementsAreConditional(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(event("e1", map[string]any{"amount": 600})))
	w.fold()
	path := "/api/v1/entitlements/api_calls/check?amount=400"
	first := w.do(call{method: "GET", path: path, key: a.key})
	tag := first.header.Get("ETag")
	if first.status != 200 || tag == "" || !strings.Contains(string(first.body), `"allowed":true`) ||
		!strings.Contains(string(first.body), `"remaining":400`) {
		t.Fatalf("%d %v %s", first.status, first.header, first.body)
	}
	w.checkUTC(path, first.body)
	// Usage of another feature moves the position, but not the content.
	w.ingest(a, batch(event("e2", map[string]any{"feature": "storage"})))
	w.fold()
	same := w.do(call{"GET", path, a.key, map[string]string{"If-None-Match": `"other", ` + tag}, nil})
	if same.status != 304 || len(same.body) > 0 || same.header.Get("ETag") != tag {
		t.Errorf("%d %s", same.status, same.body)
	}
	// The amount in an answer is part of its content, even if the verdict stays the same.
	one := "/api/v1/entitlements/api_calls/check?amount=1"
	little := w.do(call{method: "GET", path: one, key: a.key}).header.Get("ETag")
	w.ingest(a, batch(event("e3", nil)))
	w.fold()
	if got := w.do(call{"GET", one, a.key, map[string]string{"If-None-Match": little}, nil}); got.status != 200 ||
		!strings.Contains(string(got.body), `"remaining":399`) {
		t.Errorf("a changed answer has status %d: %s", got.status, got.body)
	}
	changed := w.do(call{"GET", path, a.key, map[string]string{"If-None-Match": tag}, nil})
	if changed.status != 200 || changed.header.Get("ETag") == tag || !strings.Contains(string(changed.body), `"allowed":false`) ||
		!strings.Contains(string(changed.body), `"reason":"quota_exceeded"`) {
		t.Errorf("%d %s", changed.status, changed.body)
	}
	many := w.want(200, call{"POST", "/api/v1/entitlements/check", a.key, nil,
		`{"features":[{"feature":"sso"},{"feature":"nothing","amount":3},{"feature":"api_calls","amount":0},{"feature":"api_calls",` +
			`"amount":399},{"feature":"api_calls","amount":400}]}`})
	list := many["data"].([]any)
	if len(list) != 5 || list[0].(map[string]any)["allowed"] != true || list[1].(map[string]any)["reason"] != "feature_not_found" {
		t.Errorf("%v", many)
	}
	for i, allowed := range []bool{true, true, false} {
		w.same(fmt.Sprint("question ", i), list[2+i].(map[string]any)["allowed"], allowed)
	}
	w.same("the answer", len(w.want(200, call{method: "GET", path: "/api/v1/entitlements", key: a.key})["data"].([]any)), 3)
}

// Usage is accepted by the status of the tenant and of its subscription, in which it may begin: a change holds at once, also one back.
func TestUsageOfAnEndedSubscriptionIsRefused(t *testing.T) {
	w, a := newServiceWithAccount(t)
	for _, status := range []string{"PAST_DUE", "ACTIVE", "EXPIRED", "TRIALING", "CANCELLED"} {
		w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil,
			map[string]any{"status": status}})
		other := &account{id: w.newAccountlessTenant("B")}
		w.want(201, call{"POST", "/api/v1/tenants/" + other.id + "/subscriptions", bootstrap, nil,
			map[string]any{"plan": "basic", "status": status}})
		other.key, _ = w.key(other.id, nil, "usage:write")
		want := map[bool]string{true: "accepted <nil>", false: "rejected no_active_subscription"}[status == "ACTIVE" ||
			status == "TRIALING"]
		for _, of := range []*account{a, other} {
			w.same("usage while "+status, valuesOf(verdicts(w.ingest(of, batch(event(status, nil))))[0], "status", "code"), want)
		}
	}
	tenant := call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"status":"SUSPENDED"}`}
	w.want(200, tenant)
	w.refused(w.do(call{"POST", "/api/v1/usage/events", a.key, nil, batch(event("e2", nil))}), 403, "tenant_suspended")
	tenant.body = `{"status":"ACTIVE"}`
	w.want(200, tenant)
	w.ingest(a, batch(event("e2", nil)))
}

func TestRotatedKeysOverlap(t *testing.T) {
	w, a := newServiceWithAccount(t)
	list := call{method: "GET", path: "/api/v1/usage/conflicts"}
	old, id := w.key(a.id, map[string]any{"expiresAt": time.Now().Add(time.Hour).Format(time.RFC3339)}, "usage:read")
	made := w.want(201, call{"POST", "/api/v1/tenants/" + a.id + "/api-keys/" + id + "/rotate", bootstrap, nil, `{"overlapSeconds":3600}`})
	for _, key := range []string{old, made["secret"].(string)} {
		list.key = key
		w.want(200, list)
	}
	w.want(201, call{"POST", "/api/v1/tenants/" + a.id + "/api-keys/" + id + "/rotate", bootstrap, nil, `{"overlapSeconds":0}`})
	list.key = old
	w.refused(w.do(list), 401, "unauthenticated")
}
