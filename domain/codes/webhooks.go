package codes

// webhooks holds the codes of requests about webhooks.
func webhooks() []Code {
	return []Code{
		{"delivery_not_found", 404, Request, false, 0, "Delivery not found",
			"Use an id of GET /tenants/{id}/webhooks/{webhookId}/deliveries"},
		{"url_invalid", 400, Request, false, 0, "The URL is invalid or its address is not allowed",
			"Send an https URL of a public host, without user name and fragment"},
		{"webhook_disabled", 409, Request, false, 0, "The webhook is disabled", "Enable it: PATCH its status to ENABLED"},
		{"webhook_not_found", 404, Request, false, 0, "Webhook not found", "Use an id of GET /tenants/{id}/webhooks"},
		{"webhook_replaying", 409, Request, true, 0, "A replay of the webhook is running",
			"Wait until it has ended, then send the request again"},
		{"webhook_secrets_limit", 409, Request, false, 0, "The webhook has too many valid secrets",
			"Wait until earlier secrets end, or rotate with a shorter overlap"},
		{"webhook_tests_limit", 409, Request, true, 0, "Too many tests of the webhook wait",
			"Send the request again after some were sent, or have failed"},
		{"webhooks_limit", 409, Request, false, 0, "The tenant has too many webhooks", "Remove a webhook first"},
	}
}
