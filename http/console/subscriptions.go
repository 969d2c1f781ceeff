package console

import (
	"net/http"
	"net/url"
)

func subscriptionActions() []*action {
	patch := func(name, label, warn string, in field) *action {
		return &action{name: name, path: tenantPath + "/subscriptions/{subscriptionId}/" + name, label: label, warn: warn,
			does: "PATCH /api/v1/tenants/{tenantId}/subscriptions/{subscriptionId}", fields: []field{in}, matches: true}
	}
	plan := field{name: "plan", hint: "The key of the plan."}
	return []*action{
		{name: "subscribe", path: tenantPath + "/subscribe", label: "Subscribe to a plan", does: "POST /api/v1/tenants/{tenantId}/subscriptions",
			fields: []field{plan, {name: "status", options: []string{"ACTIVE", "TRIALING"}}}},
		patch("apply-plan", "Apply a plan", "The subscription gets a new snapshot: its limits and prices are those of the plan from now on.", plan),
		patch("set-status", "Set the status", "Usage is refused while no subscription of the tenant is ACTIVE or TRIALING.", field{name: "status"}),
	}
}

// subscriptions reads the subscriptions of a tenant with their entity tags, and marks those whose snapshot differs from the plan of the present.
func (v *visit) subscriptions(tenant string) (doc, error) {
	found, err := v.try(api("tenants", tenant, "subscriptions"), limited(fewRows, v.at("subscriptions")))
	if err != nil {
		return nil, err
	}
	plans := map[string]doc{}
	marks := map[string]any{}
	for _, entry := range items(found["data"]) {
		s := object(entry)
		one, err := v.do(request{Method: http.MethodGet, Path: api("tenants", tenant, "subscriptions", text(s["id"]))})
		if err != nil {
			return nil, err
		}
		s[etagField] = one[etagField] // a list has no entity tags
		key := text(s["plan"])
		if plans[key] == nil {
			if plans[key], err = v.try(api("plans", key), url.Values{}); err != nil {
				return nil, err
			}
		}
		if plans[key]["problem"] == nil && grants(s["entitlements"]) != grants(plans[key]["entitlements"]) {
			marks[text(s["id"])] = true
		}
	}
	found["older"] = marks
	return found, nil
}

// grants returns the members that a snapshot copies from its plan.
func grants(entitlements any) string {
	all := []doc{}
	for _, entry := range items(entitlements) {
		e, copied := object(entry), doc{}
		for _, name := range []string{"feature", "limit", "limitBehavior", "resetPeriod", "onIngest", "price"} {
			copied[name] = e[name]
		}
		all = append(all, copied)
	}
	written, _ := indented(all) // answers never fail
	return written
}
