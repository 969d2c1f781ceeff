package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const (
	tenantsPath = Prefix + "/tenants"
	tenantPath  = tenantsPath + "/{tenantId}"
)

func tenantsPage() *page {
	return &page{path: tenantsPath, title: "Tenants", menu: "Tenants", template: "tenants.html", needs: "GET /api/v1/tenants", who: operator, scopes: admins(),
		params: []string{"externalId", "cursor"}, cli: []string{"meterplex tenants list[ --external-id {externalId}]"},
		load: func(v *visit) (doc, error) { return v.get(api("tenants"), v.pick("externalId", "cursor")) }}
}

// newTenantPage holds the Idempotency-Key of its form in its address: back, reload and a second window create one tenant.
func newTenantPage() *page {
	const path = Prefix + "/new/tenant"
	return &page{path: path, title: "New tenant", template: "tenant_new.html", who: operator, scopes: admins(), params: []string{"key"},
		cli:  []string{"meterplex tenants create --help"},
		load: func(v *visit) (doc, error) { return v.fresh() },
		actions: []*action{{name: "create-tenant", path: path, label: "Create the tenant", who: operator, scopes: admins(), bare: true,
			fields: []field{
				{name: "name", label: "Name"},
				{name: "class", label: "Class", kind: "select", options: []string{"small", "medium", "large"}, hint: "Groups tenants in metrics."},
				{name: "externalId", label: "External id", optional: true, hint: "The tenant's id in another system."},
			},
			request: func(_ *visit, f form) (request, error) {
				body := map[string]any{"name": f.get("name"), "class": f.get("class")}
				if id := f.get("externalId"); id != "" {
					body["externalIds"] = []string{id}
				}
				return request{Method: http.MethodPost, Path: api("tenants"), Body: body}, nil
			},
			next: func(_ *visit, _ form, answer doc) string { return tenantsPath + pathOf(text(answer["id"])) }}}}
}

func tenantPage() *page {
	return &page{path: tenantPath, title: "Tenant", template: "tenant.html", needs: "GET /api/v1/tenants/{tenantId}", who: operator, scopes: admins(),
		cli:  []string{"meterplex tenants show {tenantId}", "meterplex subscriptions list --tenant {tenantId}", "meterplex keys list --tenant {tenantId}"},
		load: loadTenant, actions: slices.Concat(tenantActions(), subscriptionActions(), keyActions(), billingActions(), offboardingActions())}
}

func loadTenant(v *visit) (doc, error) {
	id := v.param("tenantId")
	of := url.Values{"tenantId": {id}}
	tenant, err := v.get(api("tenants", id), nil)
	if err != nil {
		return nil, err
	}
	subscriptions, err := v.subscriptions(id)
	if err != nil {
		return nil, err
	}
	accounts, err := v.accounts(id, url.Values{})
	if err != nil {
		return nil, err
	}
	data, err := v.all(map[string]section{
		"keys":    {api("tenants", id, "api-keys"), limited(50, nil)},
		"figures": {api("usage", "aggregates"), of},
		"letters": {api("dead-letters"), url.Values{"tenantId": {id}, "status": {"FAILED"}, "limit": {"10"}}},
	})
	if err != nil {
		return nil, err
	}
	events, err := v.followed(api("events", "stream"), url.Values{"tenantId": {id}, "last": {"10"}, "follow": {"false"}})
	if err != nil {
		return nil, err
	}
	if data["offboarding"], err = v.offboarding(id); err != nil {
		return nil, err
	}
	data["events"] = doc{"data": events}
	data["tenant"], data["subscriptions"], data["accounts"], data["values"] = tenant, subscriptions, accounts, valuesOf(tenant)
	return data, nil
}

// valuesOf are the values of a tenant, as the form of a change displays them.
func valuesOf(tenant doc) doc {
	values := map[string]string{}
	for _, name := range []string{"name", "class", "dataResidency", "lateUsage", "closeAfterHours"} {
		values[name] = text(tenant[name])
	}
	values["externalIds"] = strings.Join(texts(items(tenant["externalIds"])), "\n")
	if metadata, ok := tenant["metadata"].(map[string]any); ok {
		values["metadata"], _ = indented(metadata) // texts never fail
	}
	d := doc{"was": wasOf(values)}
	for name, value := range values {
		d[name] = value
	}
	return d
}

func tenantActions() []*action {
	status := func(name, label, warn, to string) *action {
		return &action{name: name, path: tenantPath + "/" + name, label: label, warn: warn, who: operator, scopes: admins(), bare: true,
			request: func(v *visit, _ form) (request, error) {
				return request{Method: http.MethodPatch, Path: api("tenants", v.param("tenantId")), Body: map[string]any{"status": to}}, nil
			}}
	}
	return []*action{
		status("suspend", "Suspend the tenant", "Its keys are refused from now on: its usage is not recorded until the tenant is activated again.", "SUSPENDED"),
		status("activate", "Activate the tenant", "", "ACTIVE"),
		{name: "change-tenant", path: tenantPath + "/change", label: "Change the tenant", who: operator, scopes: admins(), bare: true,
			fields: []field{
				{name: "name", label: "Name"},
				{name: "class", label: "Class", kind: "select", options: []string{"small", "medium", "large"}},
				{name: "dataResidency", label: "Data residency"},
				{name: "lateUsage", label: "Late usage", kind: "select", options: []string{"REJECT", "ADJUST"}, hint: "Of closed periods: REJECT refuses it, ADJUST counts it as an adjustment."},
				{name: "closeAfterHours", label: "Close after hours", kind: "number", optional: true, hint: "From the end of a period until the service closes it; empty: by request only."},
				{name: "externalIds", label: "External ids", kind: "area", optional: true, hint: "One on each line."},
				{name: "metadata", label: "Metadata", kind: "area", optional: true, hint: `JSON, e.g. {"segment":"retail"}.`},
				{name: "was", kind: "hidden"},
			},
			request: changeTenant},
	}
}

// changeTenant sends the values that the visitor changed.
func changeTenant(v *visit, f form) (request, error) {
	was, body := f.was(), map[string]any{}
	for _, name := range []string{"name", "class", "dataResidency", "lateUsage"} {
		if value := f.get(name); value != was[name] {
			body[name] = value
		}
	}
	if f.lines("externalIds") != was["externalIds"] {
		body["externalIds"] = append([]string{}, words(f.lines("externalIds"), "\n")...)
	}
	for name, empty := range map[string]string{"closeAfterHours": "null", "metadata": "{}"} {
		if f.lines(name) == was[name] {
			continue
		}
		body[name] = json.RawMessage(empty)
		if err := f.exact(body, name); err != nil {
			return request{}, err
		}
	}
	return request{Method: http.MethodPatch, Path: api("tenants", v.param("tenantId")), Body: body}, nil
}

func keyActions() []*action {
	return []*action{
		{name: "create-key", path: tenantPath + "/keys", label: "Create a key", who: operator, scopes: admins(), bare: true, secret: true,
			fields: []field{
				{name: "name", label: "Name"},
				{name: "mode", label: "Mode", kind: "select", options: []string{"live", "test"}},
				{name: "scopes", label: "Scopes", kind: "checkboxes", options: []string{"usage:write", "usage:backfill", "usage:read", "entitlements:read", "entitlements:reserve", "events:read", "webhooks:manage"}},
			},
			request: func(v *visit, f form) (request, error) {
				return request{Method: http.MethodPost, Path: api("tenants", v.param("tenantId"), "api-keys"),
					Body: map[string]any{"name": f.get("name"), "mode": f.get("mode"), "scopes": f.all("scopes")}}, nil
			}},
		{name: "rotate-key", path: tenantPath + "/keys/{keyId}/rotate", label: "Rotate", who: operator, scopes: admins(), bare: true, secret: true,
			fields: []field{{name: "overlapSeconds", label: "Overlap in seconds", kind: "number", hint: "How long the old key goes on; 0 ends it at once."}},
			request: func(v *visit, f form) (request, error) {
				seconds, err := f.integer("overlapSeconds")
				return request{Method: http.MethodPost, Path: api("tenants", v.param("tenantId"), "api-keys", v.param("keyId"), "rotate"), Body: map[string]any{"overlapSeconds": seconds}}, err
			}},
		{name: "revoke-key", path: tenantPath + "/keys/{keyId}/revoke", label: "Revoke", warn: "The key is refused from now on. It cannot be used again.", who: operator, scopes: admins(), bare: true,
			request: func(v *visit, _ form) (request, error) {
				return request{Method: http.MethodDelete, Path: api("tenants", v.param("tenantId"), "api-keys", v.param("keyId"))}, nil
			}},
	}
}
