package console

import (
	"github.com/meterplex/meterplex/http/auth"
)

const reservationsPath = Prefix + "/reservations"

func reservationsPage() *page {
	const path = reservationsPath
	return &page{path: path, title: "Reservations", template: "reservations.html", needs: "GET /api/v1/entitlements/{feature}/reservations", who: either,
		scopes: append(readers(), "entitlements:read", "entitlements:reserve"), params: []string{"tenantId", "feature", "state", "cursor"},
		cli:       []string{"meterplex entitlements reservations {feature} --tenant-id {tenantId}[ --state {state}]"},
		tenantCLI: []string{"meterplex entitlements reservations {feature}[ --state {state}]", "meterplex entitlements list"},
		load: func(v *visit) (doc, error) {
			tenant, feature := v.query.Get("tenantId"), v.query.Get("feature")
			switch {
			case v.tenant == nil && tenant == "":
				return v.choice()
			case v.tenant != nil && feature == "":
				features, err := v.try(api("entitlements"), limited(100, nil))
				return doc{"features": features}, err
			case feature == "":
				features, err := v.accounts(tenant, limited(100, nil))
				return doc{"features": features}, err
			}
			query := v.pick("state", "cursor")
			if v.tenant == nil {
				query.Set("tenantId", tenant)
			}
			found, err := v.main(api("entitlements", feature, "reservations"), limited(40, query))
			return doc{"reservations": found}, err
		},
		actions: []*action{{name: "release", path: path + "/{feature}/{reservationId}/release", label: "Release", who: auth.Tenant, does: "DELETE /api/v1/entitlements/{feature}/reservations/{reservationId}",
			warn: "The held amount is free again. The job that holds it can no longer commit it."}}}
}
