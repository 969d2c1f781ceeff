package codes

// tenants holds the codes of requests about tenants, their keys and their subscriptions.
func tenants() []Code {
	return []Code{
		{"class_invalid", 400, Request, false, 0, "The class is invalid", "Send small, medium or large"},
		{"data_residency_invalid", 400, Request, false, 0, "dataResidency is invalid", "Send a name that matches ^[a-z][a-z0-9-]{0,31}$, e.g. eu-central-1"},
		{"expires_at_invalid", 400, Request, false, 0, "expiresAt is invalid", "Send an RFC 3339 time in the future, or omit it"},
		{"external_id_taken", 409, Request, false, 0, "An external id belongs to another tenant", "Send other ids, or remove the id that the detail names from its tenant: GET /tenants?externalId="},
		{"external_ids_invalid", 400, Request, false, 0, "The external ids are invalid", "Send at most 16 different strings of 1 to 255 printable ASCII characters without space"},
		{"key_not_found", 404, Request, false, 0, "Key not found", "Use an id of the list of keys; the id is not the secret"},
		{"key_not_usable", 409, Request, false, 0, "The key is revoked or expired", "Create a new key"},
		{"mode_invalid", 400, Request, false, 0, "The mode is invalid", "Send live or test"},
		{"name_invalid", 400, Request, false, 0, "The name is invalid", "Send a text of 1 to 200 characters without control characters"},
		{"overlap_invalid", 400, Request, false, 0, "overlapSeconds is out of range", "Send a number of seconds in the range that the detail names"},
		{"overlap_seconds_invalid", 400, Request, false, 0, "overlapSeconds is invalid", "Send an integer number of seconds, in digits only"},
		{"plan_invalid", 400, Request, false, 0, "The plan is invalid", "Send the key of a plan as a string"},
		{"plan_not_found", 404, Request, false, 0, "Plan not found", "Define the plan with PUT /plans/{key}, or use a key of GET /plans"},
		{"prices_invalid", 400, Request, false, 0, "prices is invalid", "Send current, or omit it"},
		{"starts_at_invalid", 400, Request, false, 0, "startsAt is invalid", "Send an RFC 3339 time with an offset, e.g. 2026-05-01T12:00:00Z, or omit it"},
		{"scopes_invalid", 400, Request, false, 0, "The scopes are invalid", "Send at least one scope of those that the detail names, each once"},
		{"status_invalid", 400, Request, false, 0, "The status is invalid", "Send a status that the member documents"},
		{"subscription_exists", 409, Request, false, 0, "The tenant has an active subscription", "End that subscription first, or change its plan (PATCH)"},
		{"subscription_not_found", 404, Request, false, 0, "Subscription not found", "Use an id of GET /tenants/{id}/subscriptions"},
		{"tenant_id_invalid", 400, Request, false, 0, "The tenantId is invalid", "Send the UUID of a tenant as a string"},
		{"tenant_is_test", 409, Request, false, 0, "The tenant is a test tenant, which is not billed", "Create a live tenant (POST /tenants) for usage to bill"},
		{"tenant_not_found", 404, Request | DeadLetter, false, 0, "Tenant not found", "Use an id of GET /tenants"},
	}
}

// catalogue holds the codes of requests about features, plans and entitlement checks.
func catalogue() []Code {
	return []Code{
		{"entitlements_invalid", 400, Request, false, 0, "An entitlement of the plan is invalid", "Correct the entitlement that the pointer names: each names a defined feature, once"},
		{"feature_type_fixed", 409, Request, false, 0, "The type of a feature does not change", "Define another feature with the other type"},
		{"charge_trial_invalid", 400, Request, false, 0, "chargeTrial is invalid", "Send true or false; true needs a price"},
		{"currency_invalid", 400, Request, false, 0, "The currency is invalid", "Send a code of ISO 4217 in upper case, e.g. EUR"},
		{"flat_micro_units_invalid", 400, Request, false, 0, "flatMicroUnits is invalid", "Send an integer number of micro-units in the range that the detail names"},
		{"micro_units_invalid", 400, Request, false, 0, "microUnits is invalid", "Send an integer number of micro-units in the range that the detail names, if the model has one"},
		{"model_invalid", 400, Request, false, 0, "The model of the price is invalid", "Send flat, per_unit, package, graduated or volume"},
		{"package_size_invalid", 400, Request, false, 0, "packageSize is invalid", "Send the number of units in a package, for the model package only"},
		{"price_key_invalid", 400, Request, false, 0, "The key of the price is invalid", "Use a key that matches the expression in the detail"},
		{"price_not_found", 404, Request, false, 0, "Price not found", "Define the price with PUT /prices/{key}, or use a key of GET /prices"},
		{"tiers_invalid", 400, Request, false, 0, "The tiers of the price are invalid", "Send 1 to 100 tiers for graduated and volume, none for other models"},
		{"features_invalid", 400, Request, false, 0, "features is invalid", "Send a list of 1 to 100 questions, each with a feature"},
		{"price_invalid", 400, Request, false, 0, "The price is invalid", "Name the key of a price, of 1 to 64 letters, digits, dots, dashes and underscores"},
		{"group_by_invalid", 400, Request, false, 0, "The metadata keys to group usage by are invalid", "Name at most two metadata keys of a feature that is not BOOLEAN, each once"},
		{"rebuild_id_invalid", 400, Request, false, 0, "rebuildId is invalid", "Send the UUID of a rebuild as a string"},
		{"version_invalid", 400, Request, false, 0, "version is invalid", "Send the number of a version, from 1"},
		{"limit_behavior_invalid", 400, Request, false, 0, "limitBehavior is invalid", "Send HARD or SOFT"},
		{"limit_invalid", 400, Request, false, 0, "The limit is invalid", "Send an integer in the range that the detail names, or null for no limit"},
		{"lookup_key_invalid", 400, Request, false, 0, "The lookup key is invalid", "Use a key that matches ^[a-z][a-z0-9_.-]{0,63}$"},
		{"on_ingest_invalid", 400, Request, false, 0, "onIngest is invalid", "Send record or enforce"},
		{"plan_key_invalid", 400, Request, false, 0, "The key of the plan is invalid", "Use a key that matches the expression in the detail"},
		{"reset_period_invalid", 400, Request, false, 0, "resetPeriod is invalid", "Send MONTHLY, ANNUALLY or NEVER"},
		{"unit_invalid", 400, Request, false, 0, "The unit is invalid", "Send a shorter text, or omit it"},
	}
}
