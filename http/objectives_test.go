package http_test

import (
	"testing"
)

// TestNoClientSpendsAnErrorBudget: an answer counts for an SLO unless the client waits for a position, whose time it chooses.
func TestNoClientSpendsAnErrorBudget(t *testing.T) {
	w, a := newServiceWithAccount(t)
	const series = "meterplex_objective_requests_total"
	is := func(lines ...string) {
		t.Helper()
		got := string(w.do(call{method: "GET", path: "/metrics"}).body)
		for _, line := range lines {
			w.holds("the metrics", got, "\n"+line+"\n")
		}
	}
	is(series+`{objective="check",result="error"} 0`, series+`{objective="ingest",result="error"} 0`,
		series+`{objective="check",result="ok"} 0`, `meterplex_check_duration_seconds_count 0`)
	w.ingest(a, batch(event("1", nil)))
	w.fold()
	check := call{method: "GET", path: "/api/v1/entitlements/api_calls/check", key: a.key}
	w.want(200, check)
	both := call{"POST", "/api/v1/entitlements/check", a.key, nil, `{"features":[{"feature":"api_calls"}]}`}
	w.want(200, both)
	is(series+`{objective="check",result="ok"} 2`, series+`{objective="ingest",result="ok"} 1`, `meterplex_check_duration_seconds_count 1`)
	metrics := string(w.do(call{method: "GET", path: "/metrics"}).body)
	for _, bound := range []string{`meterplex_check_duration_seconds_bucket{le="0.004"} `,
		`meterplex_ingest_duration_seconds_bucket{le="0.05"} `} {
		w.holds("the buckets", metrics, "\n"+bound)
	}
	later, _ := verdicts(w.ingest(a, batch(event("2", nil))))[0]["position"].(string) // not folded
	check.path += "?minPosition=" + later
	both.path += "?minPosition=" + later
	w.want(503, check)
	w.want(503, both)
	is(series+`{objective="check",result="ok"} 2`, series+`{objective="check",result="error"} 0`,
		`meterplex_check_duration_seconds_count 1`)
}
