package console

import "net/http"

func billingActions() []*action {
	return []*action{
		{name: "set-billing", path: tenantPath + "/billing", label: "Set the billing customer", who: operator, scopes: billing(), bare: true, matches: true,
			warn: "The amounts that are due of closed periods are pushed to this customer, also of periods that ended in the last 35 days.",
			fields: []field{
				{name: "provider", label: "Provider", kind: "select", options: []string{"stripe"}},
				{name: "customer", label: "Customer", hint: "The provider's id, e.g. cus_NffrFeUfNV2Hib."},
			},
			request: func(v *visit, f form) (request, error) {
				return request{Method: http.MethodPut, Path: api("tenants", v.param("tenantId"), "billing"), Body: map[string]any{"provider": f.get("provider"), "customer": f.get("customer")}}, nil
			}},
		{name: "remove-billing", path: tenantPath + "/billing/remove", label: "Remove the billing customer", who: operator, scopes: billing(), bare: true, matches: true,
			warn: "Amounts that are due later are not pushed. Pushes that are stored are still sent.",
			request: func(v *visit, _ form) (request, error) {
				return request{Method: http.MethodDelete, Path: api("tenants", v.param("tenantId"), "billing")}, nil
			}},
	}
}
