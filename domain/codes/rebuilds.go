package codes

// rebuilds holds the codes of requests that start or read rebuilds.
func rebuilds() []Code {
	return []Code{
		{"fold_not_held", 409, Request, false, 0, "The instance does not have one of the versions of the logic",
			"Send the request to an instance of the release that has both"},
		{"period_key_invalid", 400, Request, false, 0, "The periodKey is invalid", "Send a month (2026-05), a year (2026) or lifetime"},
		{"projection_not_found", 404, Request, false, 0, "Projection not found", "Use a name of GET /projections"},
		{"rebuild_in_progress", 409, Request, true, 0, "A rebuild of the same figures is in progress",
			"Promote or abandon the rebuild that the detail names, or wait for its end"},
		{"rebuild_not_found", 404, Request, false, 0, "Rebuild not found", "Use an id of GET /rebuilds"},
		{"rebuild_not_ready", 409, Request, true, 0, "The rebuild is not READY",
			"Wait until its state is READY (GET /rebuilds/{id}), then send the request again"},
		{"repair_invalid", 400, Request, false, 0, "repair is invalid", "Send true or false"},
		{"scope_changed", 0, Item, true, 0, "Another version of the figures was promoted during the verification", "Verify again"},
		{"scope_invalid", 400, Request, false, 0, "The scope of the request does not apply",
			"Name a projection, tenant and period that the rebuild has figures of"},
		{"scope_mixed", 409, Request, false, 0, "The figures were computed by several versions of the logic",
			"Verify each tenant or period that was promoted alone"},
		{"workers_invalid", 400, Request, false, 0, "The number of workers is invalid",
			"Send an integer in the range that the detail names"},
	}
}

// promotions holds the codes of requests that promote, abandon or roll back a rebuild.
func promotions() []Code {
	return []Code{
		{"generation_broken", 409, Request, false, 0, "The rebuilt figures cannot be promoted", "Abandon the rebuild and start another"},
		{"period_not_conserved", 409, Request, false, 0, "The period cannot be promoted alone",
			"Rebuild and promote the tenant or the whole projection"},
		{"rebuild_abandoned", 409, Request, false, 0, "The rebuild is abandoned", "Start another rebuild"},
		{"rebuild_is_repair", 409, Request, false, 0, "A repair cannot be rolled back",
			"Verify the projection again; rebuild it if the logic is at fault"},
		{"rebuild_not_promoted", 409, Request, false, 0, "The rebuild is not promoted", "Roll back promoted rebuilds only"},
		{"rebuild_promoted", 409, Request, false, 0, "The rebuild is promoted", "Roll it back first, or start another rebuild"},
		{"rebuild_superseded", 409, Request, false, 0, "A later rebuild of the same figures was promoted",
			"Roll back the later rebuild first"},
		{"rollback_expired", 409, Request, false, 0, "The previous figures are no longer kept",
			"Start another rebuild with the version that you want"},
	}
}

// replays holds the codes of requests that publish or read records again.
func replays() []Code {
	return []Code{
		{"consumer_not_found", 404, Request, false, 0, "Consumer not found", "Use the name of a consumer group of the service"},
		{"from_time_invalid", 400, Request, false, 0, "fromTime is invalid",
			"Send an RFC 3339 time with an offset, e.g. 2026-05-01T12:00:00Z"},
		{"positions_invalid", 400, Request, false, 0, "The positions are invalid",
			"Send positions of the log, at most one of each partition"},
		{"range_invalid", 400, Request, false, 0, "The range is invalid",
			"Send from and to of one partition, or fromTime and toTime; the range must be published already"},
		{"replay_not_found", 404, Request, false, 0, "Replay not found", "Use an id of GET /replays"},
		{"rewind_forward", 409, Request, false, 0, "The target is ahead of the current position",
			"Name an earlier target: a rewind never skips records"},
		{"schema_not_found", 404, Request, false, 0, "Schema not found", "Use a subject and version of GET /schemas"},
		{"subjects", 0, Item, false, 0, "The subjects that have schemas", "Use one of the subjects that the detail lists"},
		{"to_invalid", 400, Request, false, 0, "to is invalid",
			"Send a target that the operation documents: consumers, start, a time or positions"},
		{"to_time_invalid", 400, Request, false, 0, "toTime is invalid", "Send an RFC 3339 time with an offset, e.g. 2026-05-01T12:00:00Z"},
		{"topic_invalid", 400, Request, false, 0, "The topic is invalid", "Use a topic that the log is published to"},
	}
}
