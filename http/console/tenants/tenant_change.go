package tenants

import (
	"strings"

	"github.com/meterplex/meterplex/http/console"
)

func tenantChangePage() *console.Page {
	const path = changePath
	return &console.Page{Path: path, Title: "Change the tenant", Template: "tenant_change.html", Needs: "PATCH /api/v1/tenants/{tenantId}",
		CLI: []string{"meterplex tenants show {tenantId}", "meterplex tenants update --help"},
		Load: func(v *console.Visit) (console.Doc, error) {
			tenant, err := v.Get(console.API("tenants", v.Param("tenantId")), nil)
			return valuesOf(tenant), err
		},
		Actions: []*console.Action{{Name: "change-tenant", Path: path, Label: "Change the tenant", Does: "PATCH /api/v1/tenants/{tenantId}",
			Fields: []console.Field{
				{Name: "name"},
				{Name: "class"},
				{Name: "dataResidency"},
				{Name: "lateUsage", Hint: "Of closed periods: REJECT refuses it, ADJUST counts it as an adjustment."},
				{Name: "closeAfterHours", Optional: true,
					Hint: "From the end of a period until the service closes it; empty: by request only."},
				{Name: "externalIds", Kind: "area", Optional: true, Hint: "One on each line."},
				{Name: "metadata", Optional: true, Hint: `JSON, e.g. {"segment":"retail"}.`},
				{Name: "was", Label: "Displayed values", Kind: "hidden"},
			},
			Next: func(v *console.Visit, _ console.Form, _ console.Doc) string { return v.Expand(TenantPath) }}}}
}

// valuesOf are the values of a tenant, as the form of a change displays them.
func valuesOf(tenant console.Doc) console.Doc {
	values := map[string]string{}
	for _, name := range []string{"name", "class", "dataResidency", "lateUsage", "closeAfterHours"} {
		values[name] = console.Text(tenant[name])
	}
	values["externalIds"], values["metadata"] = strings.Join(console.Texts(console.Items(tenant["externalIds"])), "\n"), ""
	if metadata := console.Object(tenant["metadata"]); metadata != nil {
		values["metadata"], _ = console.Indented(metadata) // texts never fail
	}
	d := console.Doc{"pageTitle": "Change " + values["name"], "was": console.WasOf(values), console.EtagField: tenant[console.EtagField]}
	for name, value := range values {
		d[name] = value
	}
	return d
}
