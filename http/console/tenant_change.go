package console

import (
	"encoding/json"
	"net/http"
	"strings"
)

func tenantChangePage() *page {
	const path = tenantPath + "/change"
	return &page{path: path, title: "Change the tenant", template: "tenant_change.html", needs: "PATCH /api/v1/tenants/{tenantId}", who: operator, scopes: admins(),
		cli: []string{"meterplex tenants show {tenantId}", "meterplex tenants update --help"},
		load: func(v *visit) (doc, error) {
			tenant, err := v.get(api("tenants", v.param("tenantId")), nil)
			return valuesOf(tenant), err
		},
		actions: []*action{{name: "change-tenant", path: path, label: "Change the tenant", who: operator, scopes: admins(), bare: true,
			fields: []field{
				{name: "name", label: "Name"},
				{name: "class", label: "Class", kind: "select", options: []string{"small", "medium", "large"}},
				{name: "dataResidency", label: "Data residency"},
				{name: "lateUsage", label: "Late usage", kind: "select", options: []string{"REJECT", "ADJUST"}, hint: "Of closed periods: REJECT refuses it, ADJUST counts it as an adjustment."},
				{name: "closeAfterHours", label: "Close after hours", kind: "number", optional: true, hint: "From the end of a period until the service closes it; empty: by request only."},
				{name: "externalIds", label: "External ids", kind: "area", optional: true, hint: "One on each line."},
				{name: "metadata", label: "Metadata", kind: "area", optional: true, hint: `JSON, e.g. {"segment":"retail"}.`},
				{name: "was", label: "Displayed values", kind: "hidden"},
			},
			request: changeTenant, next: func(v *visit, _ form, _ doc) string { return v.expand(tenantPath) }}}}
}

// valuesOf are the values of a tenant, as the form of a change displays them.
func valuesOf(tenant doc) doc {
	values := map[string]string{}
	for _, name := range []string{"name", "class", "dataResidency", "lateUsage", "closeAfterHours"} {
		values[name] = text(tenant[name])
	}
	values["externalIds"], values["metadata"] = strings.Join(texts(items(tenant["externalIds"])), "\n"), ""
	if metadata := object(tenant["metadata"]); metadata != nil {
		values["metadata"], _ = indented(metadata) // texts never fail
	}
	d := doc{"was": wasOf(values), etagField: tenant[etagField]}
	for name, value := range values {
		d[name] = value
	}
	return d
}

// changeTenant sends the values that the visitor changed.
func changeTenant(v *visit, f form) (request, error) {
	body := map[string]any{}
	for _, name := range []string{"name", "class", "dataResidency", "lateUsage"} {
		if value := f.get(name); f.changed(name, value) {
			body[name] = value
		}
	}
	if ids := f.lines("externalIds"); f.changed("externalIds", ids) {
		body["externalIds"] = append([]string{}, words(ids, "\n")...)
	}
	for name, empty := range map[string]string{"closeAfterHours": "null", "metadata": "{}"} {
		if !f.changed(name, f.lines(name)) {
			continue
		}
		body[name] = json.RawMessage(empty)
		if err := f.exact(body, name); err != nil {
			return request{}, err
		}
	}
	return request{Method: http.MethodPatch, Path: api("tenants", v.param("tenantId")), Body: body}, nil
}
