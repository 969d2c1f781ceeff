package codes

// thresholds holds the codes of requests about thresholds.
func thresholds() []Code {
	return []Code{
		{"percent_invalid", 400, Request, false, 0, "The percentage is invalid", "Send an integer from 1 to 1000, in digits only"},
		{"threshold_invalid", 400, Request, false, 0, "The threshold has no value, or two", "Send either percent or amount"},
		{"threshold_not_found", 404, Request, false, 0, "Threshold not found", "Use an id of GET /tenants/{id}/thresholds"},
		{"thresholds_limit", 409, Request, false, 0, "The tenant has too many thresholds", "Remove a threshold first"},
	}
}
