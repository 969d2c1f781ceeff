package e2e

import (
	"context"
	"fmt"
	"net/http"

	"github.com/google/uuid"
)

// tenant is a tenant with a subscription, a key and a ledger of its answers.
type tenant struct {
	id, subscription, key string
	ledger                *ledger
}

// features are granted by every plan of a test.
func features() []string { return []string{"api_calls", "input_tokens", "storage.gb-hours"} }

type object = map[string]any

// catalogue defines the features and a plan that grants them, without limits, and more grants of QUOTA features.
func (w *deployment) catalogue(at *instance, more ...object) {
	w.t.Helper()
	define := func(name any, body object) {
		body["name"], body["unit"] = name, "each"
		w.ask(w.operator, http.MethodPut, at, fmt.Sprint("/api/v1/features/", name), body, nil, http.StatusCreated)
	}
	for _, f := range append(features(), "output_tokens") {
		define(f, object{"type": "METERED"})
	}
	define("grouped", object{"type": "METERED", "groupBy": []string{"region"}})
	define("calls", object{"type": "QUOTA"})
	for _, g := range more {
		define(g["feature"], object{"type": "QUOTA"})
	}
	w.ask(w.operator, http.MethodPut, at, "/api/v1/plans/all", planOfAll(more...), nil, http.StatusCreated)
}

// planOfAll is the plan that grants all features, with more grants.
func planOfAll(more ...object) object {
	grants := []object{{"feature": "calls", "limit": 1000, "limitBehavior": "HARD", "resetPeriod": "MONTHLY"}}
	for _, f := range append(features(), "output_tokens", "grouped") {
		grants = append(grants, object{"feature": f, "limit": nil, "limitBehavior": "SOFT", "resetPeriod": "MONTHLY"})
	}
	return object{"name": "All", "entitlements": append(grants, more...)}
}

// createTenants creates tenants with a subscription to the plan.
func (w *deployment) createTenants(at *instance, n int) []*tenant {
	w.t.Helper()
	var made []*tenant
	for range n {
		made = append(made, w.createTenant(at))
	}
	w.mu.Lock()
	w.tenants = append(w.tenants, made...)
	w.mu.Unlock()
	return made
}

// createTenant creates a tenant with a subscription that no check of all tenants includes.
func (w *deployment) createTenant(at *instance) *tenant {
	w.t.Helper()
	x := &tenant{ledger: newLedger()}
	var answer struct{ ID, Secret string }
	w.ask(w.operator, http.MethodPost, at, "/api/v1/tenants", object{"name": fmt.Sprint("tenant ", uuid.NewString()), "class": "small"},
		&answer, http.StatusCreated)
	x.id = answer.ID
	x.subscription = subscribe(w, at, x)
	x.key = w.keyOf(at, x, "usage:write", "usage:read", "entitlements:read")
	return x
}

func subscribe(w *deployment, at *instance, x *tenant) string {
	w.t.Helper()
	var answer struct{ ID string }
	w.ask(w.operator, http.MethodPost, at, "/api/v1/tenants/"+x.id+"/subscriptions", object{"plan": "all", "status": "ACTIVE"}, &answer,
		http.StatusCreated)
	return answer.ID
}

// keyOf creates a key of a tenant.
func (w *deployment) keyOf(at *instance, x *tenant, scopes ...string) string {
	w.t.Helper()
	var answer struct{ Secret string }
	in := object{"name": "e2e", "scopes": scopes, "mode": "live"}
	w.ask(w.operator, http.MethodPost, at, "/api/v1/tenants/"+x.id+"/api-keys", in, &answer, http.StatusCreated)
	return answer.Secret
}

// awaitKeys waits until an instance accepts the tenants' keys, which another instance created.
func awaitKeys(w *deployment, at *instance, tenants []*tenant) {
	w.t.Helper()
	for _, x := range tenants {
		within(w.t, "the key is accepted", func(ctx context.Context) (bool, string) {
			status, body, err := w.call(ctx, x.key, http.MethodGet, at.url()+"/api/v1/entitlements", nil)
			return status == http.StatusOK, fmt.Sprint(status, err, string(body))
		})
	}
}
