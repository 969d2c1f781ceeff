package tenants

import (
	"net/http"
	"net/url"

	"github.com/meterplex/meterplex/http/console"
)

func subscriptionActions() []*console.Action {
	patch := func(name, label, warn string, in console.Field) *console.Action {
		return &console.Action{Name: name, Path: TenantPath + "/subscriptions/{subscriptionId}/" + name, Label: label, Warn: warn,
			Does: "PATCH /api/v1/tenants/{tenantId}/subscriptions/{subscriptionId}", Fields: []console.Field{in}, Matches: true}
	}
	plan := console.Field{Name: "plan", Hint: "The key of the plan."}
	return []*console.Action{
		{Name: "subscribe", Path: TenantPath + "/subscribe", Label: "Subscribe to a plan",
			Does:   "POST /api/v1/tenants/{tenantId}/subscriptions",
			Fields: []console.Field{plan, {Name: "status", Options: []string{"ACTIVE", "TRIALING"}}}},
		patch("apply-plan", "Apply a plan",
			"The subscription gets a new snapshot: its limits and prices are those of the plan from now on.", plan),
		patch("set-status", "Set the status", "Usage is refused while no subscription of the tenant is ACTIVE or TRIALING.",
			console.Field{Name: "status"}),
	}
}

// subscriptions reads the subscriptions of a tenant with their entity tags, and marks those whose snapshot differs from the plan of the
// present.
func subscriptions(v *console.Visit, tenant string) (console.Doc, error) {
	found, err := v.Try(console.API("tenants", tenant, "subscriptions"),
		console.Limited(fewRows, console.With(url.Values{}, "cursor", v.Query.Get("subscriptions"))))
	if err != nil {
		return nil, err
	}
	plans := map[string]console.Doc{}
	marks := map[string]any{}
	for _, entry := range console.Items(found["data"]) {
		s := console.Object(entry)
		one, err := v.Do(console.Request{Method: http.MethodGet, Path: console.API("tenants", tenant, "subscriptions",
			console.Text(s["id"]))})
		if err != nil {
			return nil, err
		}
		s[console.EtagField] = one[console.EtagField] // a list has no entity tags
		key := console.Text(s["plan"])
		if plans[key] == nil {
			if plans[key], err = v.Try(console.API("plans", key), url.Values{}); err != nil {
				return nil, err
			}
		}
		s["planName"] = plans[key]["name"]
		if plans[key]["problem"] == nil && grants(s["entitlements"]) != grants(plans[key]["entitlements"]) {
			marks[console.Text(s["id"])] = true
		}
	}
	found["older"] = marks
	return found, nil
}

// grants returns the members that a snapshot copies from its plan.
func grants(entitlements any) string {
	all := []console.Doc{}
	for _, entry := range console.Items(entitlements) {
		e, copied := console.Object(entry), console.Doc{}
		for _, name := range []string{"feature", "limit", "limitBehavior", "resetPeriod", "onIngest", "price"} {
			copied[name] = e[name]
		}
		all = append(all, copied)
	}
	written, _ := console.Indented(all) // answers never fail
	return written
}
