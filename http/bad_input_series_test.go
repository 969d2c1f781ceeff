package http_test

import "strings"

// seriesQueries are bad requests for a usage series.
func seriesQueries(a *account) []badInput {
	hours, day := "/api/v1/usage", "?feature=api_calls&from=2026-05-01T00:00:00Z&to=2026-05-02T00:00:00Z"
	get := func(key, path string, status int, code string) badInput {
		return badInput{path, call{method: "GET", path: path, key: key}, status, code}
	}
	return []badInput{
		get(a.key, hours, 400, "parameter_missing"),
		get(a.key, hours+"?feature=api_calls&from=2026-05-01T00:00:00Z", 400, "parameter_missing"),
		get(bootstrap, hours+day, 400, "parameter_missing"),
		get(a.key, hours+day+"&granularity=week", 400, "parameter_invalid"),
		get(a.key, hours+day+"&granularity=month", 400, "parameter_invalid"),
		get(a.key, hours+"?feature=api_calls&from=2026-05-01T00:00:00%2B01:00&to=2026-05-02T00:00:00Z", 400, "parameter_invalid"),
		get(a.key, hours+"?feature=api_calls&from=2026-05-01T00:30:00Z&to=2026-05-02T00:00:00Z&granularity=hour", 400, "parameter_invalid"),
		get(a.key, hours+"?feature=api_calls&from=2026-05-03T00:00:00Z&to=2026-05-02T00:00:00Z", 400, "parameter_invalid"),
		get(a.key, hours+"?feature=api_calls&from=0001-01-01T00:00:00Z&to=9999-12-01T00:00:00Z&granularity=month", 400, "parameter_invalid"),
		get(a.key, hours+strings.Replace(day, "api_calls", "api_call", 1), 404, "feature_not_found"),
		get(a.key, hours+day+"&groupBy=region", 400, "parameter_invalid"),
		get(a.key, hours+day+"&groupBy=metadata.", 400, "parameter_invalid"),
		get(a.key, hours+day+"&groupBy=metadata.zone", 400, "parameter_invalid"),
		get(a.key, hours+day+"&groupBy=metadata.region,metadata.model", 400, "parameter_invalid"),
		get(a.key, hours+day+"&groupBy=metadata.region&groupBy=metadata.region", 400, "parameter_invalid"),
		get(a.key, hours+day+"&groupBy=metadata.region&groupBy=metadata.model&groupBy=metadata.zone", 400, "parameter_invalid"),
		get(a.key, hours+day+"&groupBy=", 400, "parameter_invalid"),
		get(a.key, hours+day+"&format=xml", 400, "parameter_invalid"),
		get(a.key, hours+day+"&format=csv&limit=5", 400, "parameter_invalid"),
		get(a.key, hours+day+"&format=csv&cursor=", 400, "parameter_invalid"),
		get(a.key, hours+day+"&format=csv&granularity=month", 400, "parameter_invalid"),
		get(bootstrap, hours+day+"&format=csv", 400, "parameter_missing"),
	}
}
