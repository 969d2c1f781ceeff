package codes

// pushes holds the codes of billing and of pushes.
func pushes() []Code {
	return []Code{
		{"billing_event_invalid", 400, Request, false, 0, "billingEvent is invalid",
			"Send 1 to 100 printable ASCII characters without space, or omit it; a BOOLEAN feature has none"},
		{"billing_not_configured", 409, Request, false, 0, "No tenant has billing",
			"Set the customer of a tenant: PUT /tenants/{tenantId}/billing"},
		{"customer_invalid", 400, Request, false, 0, "The customer is invalid",
			"Send the provider's id of the customer, e.g. cus_NffrFeUfNV2Hib"},
		{"delivered_invalid", 400, Request, false, 0, "delivered is invalid", "Send true or false"},
		{"provider_invalid", 400, Request, false, 0, "The provider is invalid", "Send stripe"},
		{"push_delivered", 409, Request, false, 0, "The Stripe delivery is DELIVERED",
			"Read it with GET /pushes/{id}; it is not sent again"},
		{"push_not_found", 404, Request, false, 0, "Stripe delivery not found", "Use an id of GET /pushes"},
		{"push_pending", 409, Request, false, 0, "The Stripe delivery is PENDING",
			"Wait: it is sent by itself; its last error has the reason"},
		{"push_too_old", 0, Item, false, 0,
			"The timestamp of the Stripe delivery is more than 35 days ago, and the provider would refuse it",
			"Bill the amount in another way, then resolve the Stripe delivery as delivered"},
		{"push_unknown", 409, Request | Item, false, 0,
			"The result of the Stripe delivery is unknown, and the provider no longer detects a repetition",
			"Look for its identifier at the provider, then resolve it: POST /pushes/{id}/resolve"},
	}
}
