package console

func billingActions() []*action {
	const billing = "/api/v1/tenants/{tenantId}/billing"
	return []*action{
		{name: "set-billing", path: tenantPath + "/billing", label: "Set the billing customer", does: "PUT " + billing, matches: true,
			warn:   "The amounts that are due of closed periods are pushed to this customer, also of periods that ended in the last 35 days.",
			fields: []field{{name: "provider"}, {name: "customer", hint: "The provider's id, e.g. cus_NffrFeUfNV2Hib."}}},
		{name: "remove-billing", path: tenantPath + "/billing/remove", label: "Remove the billing customer", does: "DELETE " + billing, matches: true,
			warn: "Amounts that are due later are not pushed. Pushes that are stored are still sent."},
	}
}
