package entitlements

import (
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/console"
)

const reservationsPath = console.Prefix + "/reservations"

func reservationsPage() *console.Page {
	const path = reservationsPath
	return &console.Page{Path: path, Title: "Reservations", Template: "reservations.html",
		Needs: "GET /api/v1/entitlements/{feature}/reservations", Who: console.Either,
		Scopes: append(readers(), "entitlements:read", "entitlements:reserve"), Params: []string{"tenantId", "feature", "state", "cursor"},
		CLI:       []string{"meterplex entitlements reservations {feature} --tenant {tenantId}[ --state {state}]"},
		TenantCLI: []string{"meterplex entitlements reservations {feature}[ --state {state}]", "meterplex entitlements list"},
		Load: func(v *console.Visit) (console.Doc, error) {
			tenant, feature := v.Query.Get("tenantId"), v.Query.Get("feature")
			switch {
			case v.Tenant == nil && tenant == "":
				return v.Choice()
			case v.Tenant != nil && feature == "":
				features, err := v.Try(console.API("entitlements"), console.Limited(100, nil))
				return console.Doc{"features": features}, err
			case feature == "":
				features, err := Accounts(v, tenant, console.Limited(100, nil))
				return console.Doc{"features": features}, err
			}
			query := v.Pick("state", "cursor")
			if v.Tenant == nil {
				query.Set("tenantId", tenant)
			}
			found, err := v.Main(console.API("entitlements", feature, "reservations"), console.Limited(40, query))
			return console.Doc{"reservations": found}, err
		},
		Actions: []*console.Action{{Name: "release", Path: path + "/{feature}/{reservationId}/release", Label: "Release", Who: auth.Tenant,
			Does: "DELETE /api/v1/entitlements/{feature}/reservations/{reservationId}",
			Warn: "The held amount is free again. The job that holds it can no longer commit it."}}}
}
