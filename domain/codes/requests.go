package codes

// access holds the codes of keys, routes and headers.
func access() []Code {
	return []Code{
		{"unauthenticated", 401, Request, false, 0, "A valid key is required",
			"Send a key that is not expired or revoked as Authorization: Bearer mp_…; the command line reads it from METERPLEX_KEY or " +
				"--key; a key that ends while its request waits is refused, too"},
		{"forbidden", 403, Request, false, 0, "The key lacks the scope of the operation",
			"Use a key with one of the scopes that the detail names: usage of a tenant needs a tenant key, the catalogue an operator " +
				"key with admin"},
		{"tenant_suspended", 403, Request | DeadLetter, false, 0, "The tenant is suspended",
			"Ask an operator to reactivate the tenant (meterplex tenants update ID --status ACTIVE), then send the request again"},
		{"not_found", 404, Request | Item, false, 0, "Not found",
			"Check the path and the id; a resource of another tenant is answered in the same way"},
		{"method_not_allowed", 405, Request, false, 0, "The path does not support the method",
			"Use a method that the header Allow lists"},
		{"path_invalid", 400, Request, false, 0, "The path contains control characters or is not UTF-8",
			"Percent-encode the ids in the path as UTF-8"},
		{"header_invalid", 400, Request, false, 0, "A header has an invalid value",
			"Send a value that the operation documents, or omit the header"},
		{"idempotency_key_invalid", 400, Request, false, 0, "The Idempotency-Key is invalid",
			"Send it once, with 1 to 255 printable ASCII characters"},
		{"idempotency_key_reused", 422, Request, false, 0, "The Idempotency-Key was used with another request",
			"Send another Idempotency-Key for another request, or none (--idempotency-key of the command line)"},
		{"idempotency_answer_expired", 409, Request, false, 0, "The request took effect, and its answer is no longer kept",
			"List the resources, or search the log (meterplex events query), to find the result of the first request; send another " +
				"Idempotency-Key to make the change once more"},
		{"state_changed", 409, Request, false, 0, "The state is not the one that the request names",
			"Check the present state in current, then send the request again with it"},
		{"number_not_exact", 400, Request, false, 0, "A number of the body cannot be represented exactly",
			"Send integers of at most 9007199254740991, and decimals with at most 15 significant digits"},
	}
}

// bodies holds the codes of bodies that cannot be read, and of members in general.
func bodies() []Code {
	return []Code{
		{"body_invalid", 400, Request, false, 0, "The body is not of the documented type",
			"Send a JSON object, as the operation documents"},
		{"body_too_large", 413, Request | DeadLetter, false, 0, "The body is too large",
			"Send fewer events in each batch: a body has at most 4 MiB, also after decompression"},
		{"content_encoding_unsupported", 415, Request, false, 0, "The Content-Encoding is not supported",
			"Compress the body with gzip or zstd, or do not compress it"},
		{"malformed_body", 400, Request, false, 0, "The compressed body is corrupt or truncated",
			"Compress the body again and send it whole"},
		{"malformed_json", 400, Request | DeadLetter, false, 0, "The body is not valid JSON",
			"Correct the JSON at the byte that the detail names: UTF-8, no duplicate members, nothing after the value, at most 64 " +
				"levels, at most 1000 members in an object and those around it"},
		{"malformed_request", 400, Request, false, 0, "The request cannot be read",
			"Compare the request with the example of the operation in /docs"},
		{"media_type_unsupported", 415, Request, false, 0, "The media type is not supported",
			"Send JSON in UTF-8 with Content-Type: application/json"},
		{"member_missing", 400, Request | Event | DeadLetter, false, 0, "A required member is missing",
			"Add the member that the pointer names"},
		{"unknown_member", 400, Request | Event | DeadLetter, false, 0, "The body has a member that is not known",
			"Correct the name of the member, or remove it; names are case-sensitive"},
		{"request_timeout", 408, Request, true, 0, "The body did not arrive in time",
			"Send the same request again; if it fails again, send smaller bodies"},
	}
}

// parameters holds the codes of query parameters, positions and pages.
func parameters() []Code {
	return []Code{
		{"cursor_invalid", 400, Request, false, 0, "The cursor is not from this list",
			"Start again without the cursor, and repeat the filters of the first page on every page"},
		{"duplicate_parameter", 400, Request, false, 0, "A query parameter is repeated", "Send each query parameter once"},
		{"format_not_supported", 400, Request, false, 0, "The format is not available in this version", "Use format=ndjson"},
		{"malformed_query", 400, Request, false, 0, "The query string cannot be read",
			"Write it as name=value pairs joined by &, percent-encoded"},
		{"parameter_invalid", 400, Request, false, 0, "A query parameter has an invalid value",
			"Correct the parameter that the detail names"},
		{"parameter_missing", 400, Request, false, 0, "A required query parameter is missing", "Add the parameter that the detail names"},
		{"position_invalid", 400, Request, false, 0, "The position is not in the tenant's log",
			"Use a position of the same tenant as the service answered it, e.g. 17-4711"},
		{"stream_invalid", 400, Request, false, 0, "The stream is invalid",
			"Write it as kind/id, e.g. tenant/0190f5c4-6d2e-7c1a-8b3f-2a4d5e6f7081"},
		{"subject_unknown", 400, Request, false, 0, "The subject is not known", "Use a subject of GET /schemas or a prefix of one"},
		{"unknown_parameter", 400, Request, false, 0, "The query has a parameter that is not known",
			"Correct the name of the parameter, or remove it; names are case-sensitive"},
	}
}

// service holds the codes of requests that fail for a reason that is not in the request.
func service() []Code {
	return []Code{
		{"backlog_full", 429, Request, true, 5, "Too many events wait to be published",
			"Send the same request again after Retry-After; the operator checks the broker"},
		{"dependency_failed", 0, Item, true, 0, "A dependency does not respond",
			"Restart or reconnect the dependency that the detail names"},
		{"internal", 500, Request, false, 0, "Internal error of the service",
			"Report the request id (X-Request-Id) to the operator; a repeated request never counts twice"},
		{"not_ready", 503, Request, true, 1, "A required dependency does not respond",
			"Wait, or restart the dependency that the detail names"},
		{"overloaded", 503, Request, true, 1, "Overloaded, retry later",
			"Send the same request again after Retry-After plus a random time"},
		{"projection_behind", 503, Request, true, 1, "The projection has not reached the position yet",
			"Send the same request again, or wait longer (Prefer: wait=30; --wait of the command line)"},
		{"rate_limited", 429, Request, true, 1, "The tenant exceeds its rate or its share",
			"Send the same request again after Retry-After, and send less"},
		{"unavailable", 503, Request, true, 1, "The event log is not available; the outcome of the request is unknown",
			"Send the same request again: events that were stored are then duplicates and count once"},
	}
}
