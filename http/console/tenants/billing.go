package tenants

import "github.com/meterplex/meterplex/http/console"

func billingActions() []*console.Action {
	const billing = "/api/v1/tenants/{tenantId}/billing"
	return []*console.Action{
		{Name: "set-billing", Path: TenantPath + "/billing", Label: "Set the billing customer", Does: "PUT " + billing, Matches: true,
			Warn: "The amounts that are due of closed periods are delivered to this customer, also of periods that ended in the " +
				"last 35 days.",
			Fields: []console.Field{{Name: "provider"}, {Name: "customer", Hint: "The provider's id, e.g. cus_NffrFeUfNV2Hib."}}},
		{Name: "remove-billing", Path: TenantPath + "/billing/remove", Label: "Remove the billing customer", Does: "DELETE " + billing,
			Matches: true,
			Warn:    "Amounts that are due later are not delivered. Deliveries that are stored are still sent."},
	}
}
