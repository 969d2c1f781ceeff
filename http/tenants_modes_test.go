package http_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
)

// TestATestTenantIsNotBilled: its keys are its own, and nothing of it is in the figures of all tenants, closed by a policy or pushed.
func TestATestTenantIsNotBilled(t *testing.T) {
	w, live := newServiceWithAccount(t)
	made := w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"Trial","class":"small","mode":"test"}`})
	test := made["id"].(string)
	if made["mode"] != "test" || w.want(200, call{"GET", "/api/v1/tenants/" + live.id, bootstrap, nil, nil})["mode"] != "live" {
		t.Errorf("made %v", made)
	}
	w.want(201, call{"POST", "/api/v1/tenants/" + test + "/subscriptions", bootstrap, nil, `{"plan":"basic"}`})
	secret, id := w.key(test, nil, commands.TenantScopes()...)
	again := w.want(201, call{"POST", "/api/v1/tenants/" + test + "/api-keys/" + id + "/rotate", bootstrap, nil, `{"overlapSeconds":60}`})
	if !strings.HasPrefix(secret, "mp_test_") || again["mode"] != "test" || !strings.HasPrefix(live.key, "mp_live_") {
		t.Errorf("keys %.8s, %v, %.8s", secret, again["mode"], live.key)
	}
	for tenant, mode := range map[string]string{test: "live", live.id: "test"} {
		p := w.refused(w.do(call{"POST", "/api/v1/tenants/" + tenant + "/api-keys", bootstrap, nil,
			`{"name":"k","scopes":["usage:read"],"mode":"` + mode + `"}`}), 400, "mode_invalid")
		if !strings.Contains(p.Detail, "leave mode out") {
			t.Errorf("%s", p.Detail)
		}
	}
	w.refused(w.do(call{"PATCH", "/api/v1/tenants/" + live.id, bootstrap, nil, `{"mode":"test"}`}), 400, "unknown_member")
	w.refused(w.do(call{"PATCH", "/api/v1/tenants/" + test, bootstrap, nil, `{"closeAfterHours":24}`}), 409, "tenant_is_test")
	w.refused(w.do(call{"PUT", "/api/v1/tenants/" + test + "/billing", bootstrap, nil, `{"provider":"stripe","customer":"cus_1"}`}), 409,
		"tenant_is_test")

	w.ingest(live, batch(storage("a", 3)))
	w.want(202, call{"POST", "/api/v1/usage/events", secret, nil, batch(storage("a", 500), event("typo", map[string]any{"feature": "x"}))})
	w.fold()
	w.recordSeen()
	for _, c := range []struct {
		path string
		want int
	}{
		{"/usage/aggregates?period=lifetime", 1}, {"/usage/aggregates?period=lifetime&feature=storage", 1},
		{"/usage/aggregates?period=lifetime&includeTest=true", 2},
		{"/usage/aggregates?tenantId=" + test, 1}, {"/usage/refusals", 0}, {"/usage/refusals?includeTest=true", 1},
		{"/usage/refusals?tenantId=" + test, 1},
	} {
		if got := rowsIn(w.want(200, call{"GET", "/api/v1" + c.path, bootstrap, nil, nil})); len(got) != c.want {
			t.Errorf("%s lists %v", c.path, got)
		}
	}
	if got, err := w.reported("meterplex_reporting", `SELECT string_agg(tenant_id::text, ',') FROM reporting_usage`); err != nil ||
		got != live.id {
		t.Errorf("reports show %q, %v", got, err)
	}
	price := `"periodKey":"lifetime","price":{"currency":"EUR","model":"per_unit","microUnits":1},"feature":"storage"`
	for asked, want := range map[string]int{"": 1, `,"tenantId":"` + test + `"`: 1} {
		if got := rowsIn(w.want(200, call{"POST", "/api/v1/prices/evaluate", bootstrap, nil, "{" + price + asked + "}"})); len(
			got) != want {
			t.Errorf("evaluate %s: %v", asked, got)
		}
	}
	month := time.Now().UTC().Format("2006-01")
	w.refused(w.do(call{"GET", fmt.Sprintf("/api/v1/usage/aggregates?period=%s&includeTest=yes", month), bootstrap, nil, nil}), 400,
		"parameter_invalid")
}
