package codes

// usageMembers holds the codes of invalid members of usage events and CloudEvents.
func usageMembers() []Code {
	return []Code{
		{"amount_invalid", 400, Request | Event | DeadLetter, false, 0, "The amount is invalid",
			"Send an integer from 1 to 9007199254740991, in digits only: not 5.0, \"5\" or 1e3"},
		{"batch_empty", 400, Request | DeadLetter, false, 0, "The batch has no events", "Send 1 to 1000 events"},
		{"batch_too_large", 400, Request | DeadLetter, false, 0, "The batch has too many events", "Send at most 1000 events in each batch"},
		{"cloudevent_invalid", 422, Request | Event | DeadLetter, false, 0, "The CloudEvent has an invalid attribute",
			"Correct the attribute that the reason names; CloudEvents 1.0 defines their forms"},
		{"correction_ref_invalid", 422, Request | Event | DeadLetter, false, 0, "The correctionRef is invalid",
			"Name the eventId of recorded usage of the same feature, which is no correction itself; leave the member out of usage"},
		{"event_id_invalid", 400, Request | Event | DeadLetter, false, 0, "The eventId is invalid",
			"Send a string of 1 to 255 printable ASCII characters without space"},
		{"event_invalid", 0, Event | DeadLetter, false, 0, "The event is not an object, or has too many members",
			"Send a JSON object for each event, each of its members once"},
		{"events_invalid", 400, Request | DeadLetter, false, 0, "events is invalid",
			"Send {\"events\":[…]} with 1 to 1000 events; for a webhook, an array of different types that the member documents"},
		{"feature_invalid", 400, Request | Event | DeadLetter, false, 0, "The feature is invalid",
			"Send a string that matches ^[a-z][a-z0-9_.-]{0,63}$"},
		{"metadata_invalid", 400, Request | Event | DeadLetter, false, 0, "The metadata cannot be stored exactly",
			"Send an object of at most 5 levels, without NUL and lone surrogates, and with numbers that JSON readers keep exactly"},
		{"metadata_too_large", 400, Request | Event | DeadLetter, false, 0, "The metadata is too large",
			"Send at most 4 KiB of metadata in canonical form"},
		{"items_invalid", 400, Request, false, 0, "The items are invalid", "Send {\"items\":[…]} with 1 to 20 items"},
		{"source_invalid", 0, Event | DeadLetter, false, 0, "The source is invalid",
			"Send a URI reference of 1 to 1024 printable ASCII characters without space, or leave it out"},
		{"timestamp_invalid", 422, Request | Event | DeadLetter, false, 0, "The timestamp is invalid",
			"Send an RFC 3339 time with an offset, e.g. 2026-05-01T12:00:00Z"},
		{"type_invalid", 400, Request | Event | DeadLetter, false, 0, "The type is invalid", "Send a type that the member documents"},
	}
}

// usagePolicy holds the codes of valid events that are not counted.
func usagePolicy() []Code {
	return []Code{
		{"batch_refused", 0, Event, false, 0,
			"Another event of the batch is refused, and the request prefers handling=strict: no event is recorded",
			"Correct or leave out the events with another code, then send the batch again with the same eventIds"},
		{"correction_target_not_counted", 0, DeadLetter, false, 0, "The event to correct does not count: it is rejected or dead-lettered",
			"Retry the dead letter of the event to correct, then that of the correction"},
		{"correction_target_retracted", 422, Request | Event | DeadLetter, false, 0, "The event to correct is retracted, which is final",
			"Send new usage with an eventId of its own"},
		{"correction_target_unknown", 422, Request | Event | DeadLetter, false, 0,
			"No accepted event has the eventId that correctionRef names",
			"Send the usage first, or earlier in the same batch; then send the correction again with the same eventId"},
		{"feature_not_found", 404, Request | Event | DeadLetter, false, 0,
			"The feature is not found in the active subscription, or not defined",
			"Name a feature of the subscription, under another eventId if the event was accepted. A plan that is applied now counts for " +
				"usage from now on: a retry of earlier usage fails again"},
		{"message_unreadable", 0, DeadLetter, false, 0, "The message of usage.commands cannot be read",
			"Correct the producer and send the message again"},
		{"no_active_subscription", 409, Request | Event | DeadLetter, false, 0, "The tenant has no active subscription at the time",
			"Create a subscription (POST /tenants/{id}/subscriptions), then send the event again with the same eventId"},
		{"not_entitled", 409, Request | Event | DeadLetter, false, 0, "A BOOLEAN feature has no usage",
			"Send usage of QUOTA and METERED features only"},
		{"payload_conflict", 409, Request | Event | DeadLetter, false, 0, "The eventId was first used with another payload",
			"Send the event under an eventId of its own if it is another event; else remove it: the first one counts"},
		{"quota_exceeded", 409, Request | Event | DeadLetter, true, 0, "The limit does not allow the amount",
			"Ask for less (remaining), wait until the limit is reset (resetAt), or raise the limit of the plan and apply it; nothing " +
				"was recorded"},
		{"refused_before", 0, DeadLetter, false, 0, "An earlier delivery of the same message was refused",
			"Send the event in a new message"},
		{"timestamp_in_future", 422, Request | Event | DeadLetter, true, 0, "The timestamp is too far in the future",
			"Synchronise the producer's clock; the event is accepted once its time is at most 5 minutes ahead"},
		{"timestamp_too_old", 422, Request | Event | DeadLetter, false, 0, "The timestamp is too old",
			"Send the event with a key that has the scope usage:backfill"},
	}
}

// reservations holds the codes of requests about reservations.
func reservations() []Code {
	return []Code{
		{"amount_exceeds_hold", 409, Request, false, 0, "The reservation holds less than the amount",
			"Commit at most the held amount, or send \"overage\":\"record\" if more has been used; the reservation is still held"},
		{"overage_invalid", 400, Request, false, 0, "overage is invalid", "Send \"deny\" or \"record\", or omit it"},
		{"reservation_conflict", 409, Request, false, 0, "The reservationId was first used for another feature or amount",
			"Use a reservationId of its own for each request; the first reservation stays"},
		{"reservation_ended", 409, Request, false, 0, "The reservation has ended",
			"The hold is over (state shows how it ended): hold the amount again under another reservationId"},
		{"reservation_id_invalid", 400, Request, false, 0, "The reservationId is invalid",
			"Send 1 to 255 printable ASCII characters without space"},
		{"reservation_not_found", 404, Request, false, 0, "Reservation not found",
			"Use the feature and the reservationId of the hold; ended reservations are kept for 7 days"},
		{"ttl_seconds_invalid", 400, Request, false, 0, "ttlSeconds is invalid", "Send an integer from 1 to 86400, in digits only"},
	}
}

// deadLetters holds the codes of requests about dead letters.
func deadLetters() []Code {
	return []Code{
		{"action_invalid", 400, Request, false, 0, "The action is invalid", "Send retry or discard"},
		{"bulk_too_large", 400, Request, false, 0, "The filter matches too many dead letters",
			"Narrow the filter by tenantId, fingerprint or from and to"},
		{"consumer_invalid", 400, Request, false, 0, "The consumer is invalid",
			"Send the name of a consumer as a string, as dead letters name it"},
		{"dead_letter_has_corrections", 409, Request | Item, false, 0, "The dead letter is a correction, or its usage is corrected",
			"Retry the dead letter once its cause is removed, then retract the usage if it must not count"},
		{"dead_letter_not_discardable", 409, Request | Item, false, 0, "The dead letter cannot be discarded in its state",
			"Discard FAILED dead letters only; wait for the outcome of a retry"},
		{"dead_letter_not_found", 404, Request | Item, false, 0, "Dead letter not found", "Use an id of GET /dead-letters"},
		{"dead_letter_not_retryable", 409, Request | Item, false, 0, "The dead letter cannot be retried in its state",
			"Retry FAILED dead letters only; send refused usage again instead, a conflict under an eventId of its own"},
		{"dry_run_invalid", 400, Request, false, 0, "dryRun is invalid", "Send true or false"},
		{"expected_matched_invalid", 400, Request, false, 0, "expectedMatched is invalid", "Send an integer from 0 to 10000"},
		{"filter_empty", 400, Request, false, 0, "The filter matches every dead letter", "Name at least one member of the filter"},
		{"filter_invalid", 400, Request, false, 0, "The filter is invalid", "Send an object with the members that the operation documents"},
		{"fingerprint_invalid", 400, Request, false, 0, "The fingerprint is invalid", "Use a fingerprint of GET /dead-letters/groups"},
		{"from_invalid", 400, Request, false, 0, "from is invalid",
			"Send a string: a position for a replay, an RFC 3339 time for a filter"},
		{"ids_invalid", 400, Request, false, 0, "The ids are invalid", "Send a list of ids of dead letters, or of adjustments"},
		{"reason_invalid", 400, Request, false, 0, "The reason is invalid",
			"Send a text of at most 500 characters without control characters"},
		{"reason_required", 400, Request, false, 0, "A reason is required", "Add a reason: the log keeps it for auditors"},
		{"retry_requested", 0, Item, true, 0, "A retry was requested before and is not executed yet",
			"Wait for the outcome of the first retry"},
		{"stage_invalid", 400, Request, false, 0, "The stage is invalid", "Send a stage that the member documents"},
		{"time_invalid", 400, Request, false, 0, "A time is invalid", "Send an RFC 3339 time with an offset, e.g. 2026-05-01T12:00:00Z"},
	}
}

// failures holds the codes of dead letters that no request is refused with.
func failures() []Code {
	return []Code{
		{"data_refused", 0, DeadLetter, true, 0, "The database refused the output of a projection",
			"Correct the cause that the reason names, then retry the dead letter"},
		{"fold_failed", 0, DeadLetter, true, 0, "A projection could not apply the event",
			"Correct the cause that the reason names, then retry the dead letter"},
		{"fold_panicked", 0, DeadLetter, true, 0, "A projection panicked on the event",
			"Update to a release without the fault, then retry the dead letter"},
		{"publish_refused", 0, DeadLetter, true, 0, "The broker refused the record",
			"Correct the topic's settings that the reason names, then replay the position"},
		{"subject_not_registered", 0, DeadLetter, true, 0, "This release does not know the event's subject",
			"Update the relay to the release that recorded the event, then replay the position"},
	}
}
