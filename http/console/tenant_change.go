package console

import "strings"

func tenantChangePage() *page {
	const path = tenantPath + "/change"
	return &page{path: path, title: "Change the tenant", template: "tenant_change.html", needs: "PATCH /api/v1/tenants/{tenantId}",
		cli: []string{"meterplex tenants show {tenantId}", "meterplex tenants update --help"},
		load: func(v *visit) (doc, error) {
			tenant, err := v.get(api("tenants", v.param("tenantId")), nil)
			return valuesOf(tenant), err
		},
		actions: []*action{{name: "change-tenant", path: path, label: "Change the tenant", does: "PATCH /api/v1/tenants/{tenantId}",
			fields: []field{
				{name: "name"},
				{name: "class"},
				{name: "dataResidency"},
				{name: "lateUsage", hint: "Of closed periods: REJECT refuses it, ADJUST counts it as an adjustment."},
				{name: "closeAfterHours", optional: true, hint: "From the end of a period until the service closes it; empty: by request only."},
				{name: "externalIds", kind: "area", optional: true, hint: "One on each line."},
				{name: "metadata", optional: true, hint: `JSON, e.g. {"segment":"retail"}.`},
				{name: "was", label: "Displayed values", kind: "hidden"},
			},
			next: func(v *visit, _ form, _ doc) string { return v.expand(tenantPath) }}}}
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
