package http_test

import (
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// conditionalCase is a change of an entity that has an entity tag.
type conditionalCase struct {
	name, read string
	change     call
	other      call // makes another state
	subject    events.Subject
}

// TestChangesRequireTheStateThatTheyName: by If-Match. A repeat under the Idempotency-Key gets the first answer, whatever the state is by
// then.
func TestChangesRequireTheStateThatTheyName(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.priced()
	a := w.newAccount("A")
	tenant := "/api/v1/tenants/" + a.id
	put := func(method, path, body string) call { return call{method, path, bootstrap, nil, body} }
	const plan, feature, price = "/api/v1/plans/basic", "/api/v1/features/storage", "/api/v1/prices/calls"
	subscription := tenant + "/subscriptions/" + a.subscription
	for _, c := range []conditionalCase{
		{name: "plan", read: plan, change: put("PUT", plan, `{"name":"B","entitlements":[]}`),
			other: put("PUT", plan, `{"name":"C","entitlements":[]}`), subject: events.PlanDefined},
		{name: "feature", read: feature, change: put("PUT", feature, `{"name":"B","type":"METERED"}`),
			other: put("PUT", feature, `{"name":"C","type":"METERED"}`), subject: events.FeatureDefined},
		{name: "price", read: price, change: put("PUT", price, `{"name":"B","currency":"EUR","model":"flat","microUnits":1}`),
			other: put("PUT", price, `{"name":"C","currency":"EUR","model":"flat","microUnits":2}`), subject: events.PriceDefined},
		{name: "tenant", read: tenant, change: put("PATCH", tenant, `{"name":"B"}`), other: put("PATCH", tenant, `{"name":"C"}`),
			subject: events.TenantChanged},
		{name: "billing", read: tenant, change: put("PUT", tenant+"/billing", `{"provider":"stripe","customer":"cus_1"}`),
			other: put("PATCH", tenant, `{"name":"D"}`), subject: events.TenantChanged},
		{name: "no billing", read: tenant, change: call{"DELETE", tenant + "/billing", bootstrap, nil, nil},
			other: put("PATCH", tenant, `{"name":"E"}`), subject: events.TenantChanged},
		{name: "subscription", read: subscription, change: put("PATCH", subscription, `{"plan":"basic"}`),
			other: put("PATCH", subscription, `{"status":"TRIALING"}`), subject: events.SubscriptionChanged},
	} {
		stale := w.tag(c.read)
		w.want(200, c.other)
		tag := w.tag(c.read)
		if stale == tag || stale == "" {
			t.Errorf("%s: the tags are %s and %s", c.name, stale, tag)
			continue
		}
		before := w.events(c.subject)
		send := func(match, key string) answer {
			sent := c.change
			sent.header = map[string]string{"If-Match": match}
			if key != "" {
				sent.header["Idempotency-Key"] = key
			}
			return w.do(sent)
		}
		w.holds(c.name+": the present state", string(w.refused(send(stale, "stale "+c.name), 409, "state_changed").Current),
			strings.Trim(tag, `"`))
		w.refused(send(`"x`, ""), 400, "header_invalid")
		first := send(`"other", `+tag, "once "+c.name)
		again := send(tag, "once "+c.name)
		if first.status != 200 || again.status != 200 || string(first.body) != string(again.body) {
			t.Errorf("%s: a repeat gives %d %s instead of %d %s", c.name, again.status, again.body, first.status, first.body)
		}
		w.refused(send(tag, ""), 409, "state_changed")
		w.same(c.name+": events", w.events(c.subject)-before, 1)
		w.want(200, c.other) // without If-Match, as before
	}
}

// tag returns the entity tag of an entity.
func (w *testService) tag(path string) string {
	w.Helper()
	got := w.do(call{method: "GET", path: path, key: bootstrap})
	if got.status != 200 {
		w.Fatalf("%s: %d %s", path, got.status, got.body)
	}
	return got.header.Get("ETag")
}

// TestACreationReplacesNothing: with If-None-Match: *.
func TestACreationReplacesNothing(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	for _, c := range []call{
		{"PUT", "/api/v1/features/new", bootstrap, nil, `{"name":"N","type":"QUOTA"}`},
		{"PUT", "/api/v1/plans/new", bootstrap, nil, `{"name":"N","entitlements":[]}`},
		{"PUT", "/api/v1/prices/new", bootstrap, nil, `{"name":"N","currency":"EUR","model":"flat","microUnits":1}`},
	} {
		plain := c
		for _, match := range []string{`"none"`, `W/"none"`, "*"} {
			c.header = map[string]string{"If-Match": match}
			w.refused(w.do(c), 409, "state_changed")
		}
		c.header = map[string]string{"If-None-Match": `"x"`}
		w.refused(w.do(c), 400, "header_invalid")
		c.header = map[string]string{"If-None-Match": "*", "Idempotency-Key": "new " + c.path}
		w.want(201, c)
		w.want(201, c) // the first answer
		delete(c.header, "Idempotency-Key")
		w.refused(w.do(c), 409, "state_changed")
		w.want(200, plain)
		c.header = map[string]string{"If-Match": "*"}
		w.want(200, c)
		c.header = map[string]string{"If-Match": "*", "If-None-Match": "*"}
		w.refused(w.do(c), 409, "state_changed")
	}
}

// TestAChangeThatComparesNoStateIsNotMadeWithOne: a caller who sends If-Match must not overwrite a state that it did not see.
func TestAChangeThatComparesNoStateIsNotMadeWithOne(t *testing.T) {
	w, a := newServiceWithAccount(t)
	tenant := "/api/v1/tenants/" + a.id
	webhook := tenant + "/webhooks/" + w.want(201, call{"POST", tenant + "/webhooks", bootstrap, nil,
		`{"url":"https://example.com/hook","events":["period.closed"]}`})["id"].(string)
	threshold := tenant + "/thresholds/" + w.want(201, call{"POST", tenant + "/thresholds", bootstrap, nil, `{"percent":80}`})["id"].(string)
	before := w.logged()
	for _, c := range []call{
		{"PATCH", webhook, bootstrap, nil, `{"status":"DISABLED"}`},
		{"DELETE", webhook, bootstrap, nil, nil},
		{"POST", webhook + "/rotate", bootstrap, nil, `{}`},
		{"DELETE", threshold, bootstrap, nil, nil},
		{"DELETE", tenant + "/api-keys/" + a.keyID, bootstrap, nil, nil},
		{"POST", tenant + "/offboard", bootstrap, nil, `{"reason":"test"}`},
		{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"T","class":"small"}`},
	} {
		for _, header := range []string{"If-Match", "If-None-Match"} {
			c.header = map[string]string{header: w.tagOrAny(webhook, header), "Idempotency-Key": "no state"}
			w.refused(w.do(c), 400, "header_invalid")
		}
	}
	w.same("events of refused changes", w.logged()-before, 0)
}

// TestARebuildIsAbandonedInTheStateThatItsCallerSaw.
func TestARebuildIsAbandonedInTheStateThatItsCallerSaw(t *testing.T) {
	w, _, _ := newRebuildWorld(t)
	path := "/api/v1/rebuilds/" + w.rebuilt("usage_aggregates", nil)
	ready := w.tag(path)
	for _, step := range []string{"/promote", "/rollback"} {
		w.want(202, call{"POST", path + step, bootstrap, nil, `{"reason":"r"}`})
	}
	abandon := func(tag string) call {
		return call{"POST", path + "/abandon", bootstrap, map[string]string{"If-Match": tag}, `{"reason":"r"}`}
	}
	w.refused(w.do(abandon(ready)), 409, "state_changed")
	w.want(202, abandon(w.tag(path)))
	w.same("the rebuild", w.want(200, call{method: "GET", path: path, key: bootstrap})["state"], "ABANDONED")
}

// logged counts the events of all partitions.
func (w *testService) logged() (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(), `SELECT sum(position) FROM log_heads`).Scan(&n))
	return n
}

// tagOrAny returns the present state for If-Match, and the absence of any for If-None-Match.
func (w *testService) tagOrAny(path, header string) string {
	if header == "If-Match" {
		return w.tag(path)
	}
	return "*"
}

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
			w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil,
				`{"status":"` + status + `"}`})
		}
	}
	older()
	plan := w.get("/plans/basic")
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, map[string]any{"name": "Another name",
		"entitlements": plan["entitlements"]}})
	older()
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, `{"name":"Basic","entitlements":[]}`})
	older(ids["ACTIVE"], ids["TRIALING"], ids["PAST_DUE"])
	w.newAccount("present")
	older(ids["ACTIVE"], ids["TRIALING"], ids["PAST_DUE"])
}
