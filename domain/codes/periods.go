package codes

// periods holds the codes of closed periods and their adjustments.
func periods() []Code {
	return []Code{
		{"adjustment_decided", 409, Request, false, 0, "The adjustment is decided already",
			"Read its state: GET /adjustments; a decision is final"},
		{"adjustment_not_found", 404, Request, false, 0, "Adjustment not found", "Use an id of GET /adjustments"},
		{"close_after_hours_invalid", 400, Request, false, 0, "closeAfterHours is invalid", "Send 1 to 8784 hours, or null"},
		{"decision_invalid", 400, Request, false, 0, "The decision is invalid",
			"Send approve or waive, and either ids or a scope: tenantId, periodKey and upTo"},
		{"early_invalid", 400, Request, false, 0, "early is invalid", "Send true or false"},
		{"kind_invalid", 400, Request, false, 0, "The kind is invalid", "Send a kind of adjustments that the member documents"},
		{"late_usage_invalid", 400, Request, false, 0, "lateUsage is invalid", "Send REJECT or ADJUST"},
		{"period_closed", 409, Request | Event | DeadLetter, false, 0, "The period is closed, and late usage is refused",
			"Set the tenant's lateUsage to ADJUST, or reopen the period, then send the event again, or retry its dead letter"},
		{"period_closing", 409, Request, true, 0, "The period is being closed",
			"Wait until it is CLOSED, or retry its process: GET /sagas"},
		{"period_not_closable", 409, Request, false, 0, "The period cannot be closed", "Name a month or a year that has begun"},
		{"period_not_closed", 409, Request, false, 0, "The period is not closed", "Close it first: POST /tenants/{id}/periods/{key}/close"},
		{"period_not_ended", 409, Request, true, 0, "The period has not ended", "Wait for its end, or close it with early"},
		{"snapshot_not_found", 404, Request, false, 0, "The period has no such snapshot",
			"Leave snapshot out, or use a number up to that of the period"},
		{"up_to_invalid", 400, Request, false, 0, "upTo is invalid",
			"Send the position of the last adjustment that you have seen, e.g. 17-9400; of a tier of a price its last unit, above that " +
				"of the tier before"},
	}
}
