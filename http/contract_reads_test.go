package http_test

import (
	"encoding/json"
	"testing"
	"time"
)

// TestEveryReadOfEventsTakesAPosition: a read waits for minPosition, or answers
// projection_behind.
func TestEveryReadOfEventsTakesAPosition(t *testing.T) {
	m := newIsolationFixture(t)
	at := verdicts(m.ingest(m.a, batch(event("late", nil))))[0]["position"].(string)
	month := time.Now().UTC().Format("2006-01")
	paths := []string{"/usage/events", "/usage/events/late", "/usage/conflicts", "/usage/refusals", "/usage/aggregates",
		"/usage" + queries["GET /usage"], "/usage/aggregates/explain?feature=api_calls&period=" + month,
		"/dead-letters", "/dead-letters/groups", "/adjustments", "/quota/accounts", "/events", "/events/export", "/events/" + at,
		"/events/" + at + "/lineage"}
	calls := []call{{method: "GET", path: "/api/v1/dead-letters/" + m.a.letterID + "?minPosition=" + at, key: m.audit}}
	for _, path := range paths {
		calls = append(calls, call{method: "GET", path: with(with("/api/v1"+path, "tenantId="+m.a.id), "minPosition="+at), key: m.audit})
	}
	for _, path := range []string{"", "/" + month, "/" + month + "/charges", "/" + month + "/adjustments", "/" + month + "/export"} {
		calls = append(calls, call{method: "GET", path: "/api/v1/tenants/" + m.a.id + "/periods" + path + "?minPosition=" + at,
			key: m.audit})
	}
	for _, path := range []string{"/entitlements", "/entitlements/api_calls/check"} {
		calls = append(calls, call{method: "GET", path: with("/api/v1"+path, "minPosition="+at), key: m.a.key})
	}
	for _, c := range calls {
		got := m.do(c)
		m.refused(got, 503, "projection_behind")
		if t.Failed() {
			t.Fatalf("%s: %d %s", c.path, got.status, got.body)
		}
	}
	m.fold()
	for _, c := range calls {
		m.want(200, c)
	}
	for _, path := range []string{"/events", "/events/export"} {
		m.refused(m.do(call{method: "GET", path: "/api/v1" + path + "?minPosition=" + at, key: m.audit}), 400, "position_invalid")
	}
	m.refused(m.do(call{method: "GET", path: "/api/v1/adjustments?minPosition=" + at, key: m.audit}), 400, "parameter_invalid")
}

// TestFiguresAreExplainedByTheParametersTheyAreReadWith uses the same parameters to read
// a figure and to explain it.
func TestFiguresAreExplainedByTheParametersTheyAreReadWith(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(event("1", map[string]any{"amount": 5}), event("2", map[string]any{"amount": 6})))
	w.fold()
	month := time.Now().UTC().Format("2006-01")
	figure := "?feature=api_calls&period=" + month
	read := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates" + figure, key: a.key})["data"].([]any)[0].(map[string]any)
	for _, query := range []string{figure, "?feature=api_calls&periodKey=" + month, figure + "&periodKey=" + month} {
		got := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates/explain" + query, key: a.key})
		if got["total"] != read["amount"] || got["adds"] != true || len(got["data"].([]any)) != 2 {
			t.Errorf("%s: %v", query, got)
		}
	}
	w.refused(w.do(call{method: "GET", path: "/api/v1/usage/aggregates/explain" + figure + "&periodKey=lifetime", key: a.key}), 400,
		"parameter_invalid")
}

// TestP9_KeysOfTheLogReadEarlierFigures: a key with events:read reads figures as of a position or time and explains them, and no present
// ones.
func TestP9_KeysOfTheLogReadEarlierFigures(t *testing.T) {
	w, a := newServiceWithAccount(t)
	at := verdicts(w.ingest(a, batch(event("one", nil))))[0]["position"].(string)
	w.fold()
	key, _ := w.key(a.id, nil, "events:read")
	month := time.Now().UTC().Format("2006-01")
	const figures = "/api/v1/usage/aggregates"
	for _, path := range []string{figures + "?asOfPosition=" + at, figures + "?asOf=" + time.Now().UTC().Format(time.RFC3339Nano),
		figures + "/explain?feature=api_calls&period=" + month} {
		w.want(200, call{method: "GET", path: path, key: key})
	}
	for _, path := range []string{figures, figures + "?format=csv", figures + "?minPosition=" + at, "/api/v1/usage/events"} {
		w.refused(w.do(call{method: "GET", path: path, key: key}), 403, "forbidden")
	}
}

// TestP3_TheIdentityResponseNamesItsTerms adds up the members that have the names of the
// promise's terms.
func TestP3_TheIdentityResponseNamesItsTerms(t *testing.T) {
	m := newIsolationFixture(t)
	m.ingest(m.a, batch(event("undecided", nil)))
	got := m.want(200, call{method: "GET", path: "/api/v1/system/identity", key: m.audit})
	term := func(name string) int64 {
		n, _ := got[name].(json.Number)
		v, err := n.Int64()
		m.must(err)
		return v
	}
	if term("accepted") != 7 || term("aggregated") != 5 || term("rejected") != 1 || term("inFlight") != 1 || term("parked") != 0 ||
		got["holds"] != true {
		t.Errorf("%v", got)
	}
}
