package http_test

import "testing"

// TestOlderSnapshotsAreOfSubscriptionsThatGoOn: an ended subscription keeps its snapshot, and nobody has to apply the plan to it.
func TestOlderSnapshotsAreOfSubscriptionsThatGoOn(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	older := func(want ...string) {
		t.Helper()
		list := w.want(200, call{method: "GET", path: "/api/v1/plans/basic/subscriptions?snapshot=older", key: bootstrap})["data"].([]any)
		var got []string
		for _, s := range list {
			got = append(got, s.(map[string]any)["id"].(string))
		}
		w.same("on older snapshots", got, want)
	}
	ids := map[string]string{}
	for _, status := range []string{"ACTIVE", "TRIALING", "PAST_DUE", "CANCELLED", "EXPIRED"} {
		a := w.newAccount(status)
		ids[status] = a.subscription
		if status != "ACTIVE" {
			w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"status":"` + status + `"}`})
		}
	}
	older()
	plan := w.get("/plans/basic")
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, map[string]any{"name": "Another name", "entitlements": plan["entitlements"]}})
	older()
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, `{"name":"Basic","entitlements":[]}`})
	older(ids["ACTIVE"], ids["TRIALING"], ids["PAST_DUE"])
	w.newAccount("present")
	older(ids["ACTIVE"], ids["TRIALING"], ids["PAST_DUE"])
}
