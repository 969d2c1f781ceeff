package codes

// pushAttempts holds the service's codes of attempts that the billing provider did not answer with a code of its own.
func pushAttempts() []Code {
	return []Code{
		{"provider_answer_unexpected", 0, Item, true, 0,
			"The answer to a Stripe delivery is not the provider's, or a part of it is missing",
			"The delivery is sent again by itself; if it goes on, look for a proxy between the service and METERPLEX_STRIPE_URL"},
		{"provider_key_refused", 0, Item, true, 0, "The billing provider refuses the secret key of the service",
			"Correct METERPLEX_STRIPE_KEY, and restart the instances with the role biller: deliveries go on by themselves within minutes"},
		{"provider_no_answer", 0, Item, true, 0, "The billing provider did not answer, and may have counted the Stripe delivery",
			"Wait: the delivery is sent again by itself for 23 hours"},
		{"provider_unreachable", 0, Item, true, 0, "No connection to the billing provider",
			"The delivery is sent again by itself; check METERPLEX_STRIPE_URL, DNS and the firewall"},
		{"push_invalid", 0, Item, false, 0, "The billing provider's API cannot carry the Stripe delivery",
			"Correct the cause that the reason names, then retry the delivery; bill the amount in another way if that is impossible"},
	}
}
