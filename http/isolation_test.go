package http_test

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/auth"
)

// isolationFixture holds the fixtures of the isolation tests: a tenant whose ids are used, another
// tenant, and keys of every kind.
type isolationFixture struct {
	*testService
	a, b                    *account
	billing, audit, admin   string
	suspended, eventsReader string
	bad                     map[string]call // invalid keys
	ids                     map[string]string
}

func newIsolationFixture(t *testing.T) *isolationFixture {
	m := &isolationFixture{testService: newTestService(t)}
	m.catalogue()
	m.a, m.b = m.newAccount("A"), m.newAccount("B")
	m.billing, _ = m.key("", nil, "billing")
	m.audit, _ = m.key("", nil, "audit")
	m.admin, _ = m.key("", nil, "admin")
	m.eventsReader, _ = m.key(m.a.id, nil, commands.ScopeEventsRead)
	c := m.newAccount("C")
	m.suspended = c.key
	m.want(200, call{"PATCH", "/api/v1/tenants/" + c.id, bootstrap, nil, `{"status":"SUSPENDED"}`})
	m.ingest(m.a, batch(event("secret-of-A", nil)))
	m.ingest(m.a, batch(event("secret-of-A", map[string]any{"amount": 2})))
	m.ingest(m.a, batch(event("refused-of-A", map[string]any{"feature": "secret-of-A"})))
	m.letter(m.a)
	m.recordSeen()
	m.fold()
	_, spare := m.key("", nil, "audit")
	m.ids = map[string]string{"tenantId": m.a.id, "keyId": m.a.keyID, "subscriptionId": m.a.subscription, "eventId": "secret-of-A",
		"deadLetterId": m.a.letterID, "feature": "api_calls", "lookupKey": "api_calls", "key": "basic", "priceKey": "calls",
		"operator keyId": spare}
	m.want(201, call{"PUT", "/api/v1/prices/calls", bootstrap, nil, `{"name":"C","currency":"EUR","model":"flat","microUnits":1}`})
	m.want(201, holding(m.a.key, "held-of-A", 1, 86400))
	m.want(201, holding(m.b.key, "held-of-B", 1, 86400))
	m.ids["reservationId"] = "held-of-A"
	m.ids["replayId"], _ = m.want(202, call{"POST", "/api/v1/replays/rewind", bootstrap, nil,
		`{"to":"start","reason":"for the matrix"}`})["id"].(string)
	m.adjusted()
	m.ids["sagaId"] = m.saga(m.a.id, "matrix")
	m.ids["pushId"], m.ids["resolve pushId"] = m.push(m.a.id, 0, "FAILED"), m.push(m.a.id, 1, "FAILED")
	m.ids["webhookId"], m.ids["deliveryId"] = m.webhookOf(m.a)
	m.ids["thresholdId"] = m.thresholdOf(m.a)
	m.ids["name"], m.ids["rebuildId"] = "dead_letter_events", m.rebuilt("usage_aggregates", nil)
	m.ids["event"] = m.firstOf(m.a)
	m.ids["subject"], m.ids["n"] = "meterplex.usage.event.recorded", "1"
	m.badKeys()
	return m
}

// adjusted closes the last month of A, and makes two adjustments of it: one to approve and one to waive.
func (m *isolationFixture) adjusted() {
	m.Helper()
	m.accept(m.a, old("old-of-A", 2), old("older-of-A", 2))
	m.ids["periodKey"], _ = lastMonth()
	m.closed(m.a)
	m.accept(m.a, correction("late-of-A", "old-of-A", 1), correction("later-of-A", "older-of-A", 1))
	m.fold()
	ids := m.adjustmentsAt("/api/v1/adjustments?tenantId="+m.a.id, "id", "position")
	m.ids["adjustmentId"], m.ids["upTo"], _ = strings.Cut(ids[0], " ")
	m.ids["waive adjustmentId"], _, _ = strings.Cut(ids[1], " ")
}

// firstOf returns the eventId of the first usage event in an account's log.
func (w *testService) firstOf(p *account) (id string) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(),
		`SELECT event_id FROM event_log_rows WHERE tenant_id = $1 AND subject = 1 ORDER BY position LIMIT 1`,
		p.id).Scan(&id))
	return id
}

func (m *isolationFixture) badKeys() {
	revoked, id := m.key(m.a.id, nil, commands.TenantScopes()...)
	m.want(204, call{method: "DELETE", path: "/api/v1/tenants/" + m.a.id + "/api-keys/" + id, key: bootstrap})
	expired, id := m.key(m.a.id, nil, commands.TenantScopes()...)
	m.exec(`UPDATE api_keys SET expires_at = now() - interval '1 minute' WHERE id = $1`, id)
	flipped := m.a.key[:len(m.a.key)-1] + map[bool]string{true: "B", false: "A"}[strings.HasSuffix(m.a.key, "A")]
	auth := func(v string) call { return call{header: map[string]string{"Authorization": v}} }
	m.bad = map[string]call{
		"none": {}, "empty": auth("Bearer "), "no scheme": auth(m.a.key), "basic": auth("Basic " + m.a.key),
		"malformed": auth("Bearer mp_live_short"),
		"unknown":   auth("Bearer mp_live_" + strings.Repeat("x", 43)), "unknown operator": auth("Bearer mp_op_" + strings.Repeat("x", 43)),
		"wrong secret": auth("Bearer " + flipped), "two spaces": auth("Bearer  " + m.a.key),
		"twice in one": auth("Bearer " + m.a.key + ", Bearer " + m.a.key),
		"revoked":      {key: revoked}, "expired": {key: expired},
		"SQL": auth("Bearer mp_live_' OR 1=1 --" + strings.Repeat("x", 43)), "endless": auth("Bearer mp_live_" + strings.Repeat("x", 5000)),
	}
}

// bodies holds the body of each route that takes one; nil: an empty one.
func (m *isolationFixture) bodies() map[string]any {
	return map[string]any{
		"POST /usage/events":                   batch(event("matrix", nil)),
		"POST /entitlements/check":             `{"features":[{"feature":"api_calls"}]}`,
		"POST /entitlements/{feature}/consume": `{"eventId":"matrix-one","amount":1}`,
		"POST /entitlements/consume": `{"items":[{"feature":"api_calls","eventId":"matrix-item",` +
			`"amount":1}]}`,
		"POST /entitlements/{feature}/reservations": `{"reservationId":"matrix-one","amount":1}`,
		"POST /entitlements/reservations": `{"items":[{"feature":"api_calls","reservationId":"matrix-item",` +
			`"amount":1}]}`,
		"POST /entitlements/{feature}/reservations/{reservationId}/commit": `{"eventId":"matrix-commit","amount":1}`,
		"POST /entitlements/{feature}/reservations/{reservationId}/extend": `{"ttlSeconds":86400}`,
		"POST /dead-letters/{deadLetterId}/retry":                          `{"reason":"the feature is back"}`,
		"POST /dead-letters/{deadLetterId}/discard":                        `{"reason":"it was a test"}`,
		"POST /quota/accounts/reconcile":                                   `{"tenantId":"` + m.a.id + `"}`,
		"POST /dead-letters/bulk": `{"action":"retry","filter":{"ids":["` + m.a.letterID +
			`"]},"dryRun":true}`,
		"POST /replays": `{"topic":"usage.raw","fromTime":"2026-05-01T00:00:00Z","reason":"for the ` +
			`matrix"}`,
		"POST /replays/rewind":                                `{"to":"start","reason":"for the matrix"}`,
		"POST /sagas/{sagaId}/retry":                          `{"reason":"for the matrix","despite":["dead_letters"]}`,
		"POST /pushes/{pushId}/retry":                         `{"reason":"for the matrix"}`,
		"POST /pushes/{pushId}/resolve":                       `{"delivered":true,"reason":"for the matrix"}`,
		"POST /pushes/reconcile":                              nil,
		"POST /tenants/{tenantId}/erase":                      `{"reason":"for the matrix"}`,
		"POST /tenants/{tenantId}/offboard":                   `{"reason":"for the matrix"}`,
		"POST /tenants/{tenantId}/offboard/cancel":            `{"reason":"for the matrix"}`,
		"PUT /tenants/{tenantId}/billing":                     `{"provider":"stripe","customer":"cus_1"}`,
		"POST /tenants/{tenantId}/periods/{periodKey}/close":  `{"reason":"for the matrix"}`,
		"POST /tenants/{tenantId}/periods/{periodKey}/reopen": `{"reason":"for the matrix"}`,
		"POST /adjustments/{adjustmentId}/approve":            `{"reason":"for the matrix"}`,
		"POST /adjustments/{adjustmentId}/waive":              `{"reason":"for the matrix"}`,
		"POST /adjustments/decide": `{"tenantId":"` + m.a.id + `","periodKey":"` + m.ids["periodKey"] + `","upTo":"` + m.ids["upTo"] +
			`","decision":"approve","reason":"for the matrix","dryRun":true}`,
		"POST /tenants/{tenantId}/webhooks":                        `{"url":"https://example.com/matrix","events":["period.closed"]}`,
		"POST /tenants/{tenantId}/thresholds":                      `{"amount":5}`,
		"PATCH /tenants/{tenantId}/webhooks/{webhookId}":           `{"events":["period.closed","push.failed"]}`,
		"POST /tenants/{tenantId}/webhooks/{webhookId}/rotate":     `{"overlapSeconds":60}`,
		"POST /tenants/{tenantId}/webhooks/{webhookId}/test":       nil,
		"POST /tenants/{tenantId}/webhooks/{webhookId}/replay":     `{"from":"2026-05-01T00:00:00Z","to":"2026-06-01T00:00:00Z"}`,
		"POST /deliveries/{deliveryId}/replay":                     nil,
		"POST /projections/{name}/rebuilds":                        `{"reason":"for the matrix"}`,
		"POST /projections/{name}/verify":                          `{}`,
		"POST /rebuilds/{rebuildId}/promote":                       `{"reason":"for the matrix"}`,
		"POST /rebuilds/{rebuildId}/rollback":                      `{"reason":"for the matrix"}`,
		"POST /rebuilds/{rebuildId}/abandon":                       `{"reason":"for the matrix"}`,
		"POST /tenants":                                            `{"name":"M","class":"small"}`,
		"PATCH /tenants/{tenantId}":                                `{"class":"medium"}`,
		"POST /tenants/{tenantId}/api-keys":                        `{"name":"M","scopes":["usage:read"]}`,
		"POST /tenants/{tenantId}/api-keys/{keyId}/rotate":         `{"overlapSeconds":3600}`,
		"POST /tenants/{tenantId}/portal-links":                    `{"expiresInSeconds":60}`,
		"POST /operator-keys":                                      `{"name":"M","scopes":["audit"]}`,
		"POST /operator-keys/{keyId}/rotate":                       `{"overlapSeconds":3600}`,
		"PUT /features/{lookupKey}":                                `{"name":"Calls","type":"QUOTA"}`,
		"PUT /plans/{key}":                                         `{"name":"Basic","entitlements":[]}`,
		"POST /prices/evaluate":                                    `{"periodKey":"2026-05","priceKey":"calls","feature":"api_calls"}`,
		"PUT /prices/{priceKey}":                                   `{"name":"Calls","currency":"EUR","model":"per_unit","microUnits":5}`,
		"POST /tenants/{tenantId}/subscriptions":                   `{"plan":"basic","status":"PAST_DUE"}`,
		"PATCH /tenants/{tenantId}/subscriptions/{subscriptionId}": `{"status":"TRIALING"}`,
	}
}

// sample returns a valid request for a route, with ids of tenant A. Every route that
// requires a key must have one here.
func (m *isolationFixture) sample(r auth.Route) (call, bool) {
	bodies := m.bodies()
	name := r.Method + " " + strings.TrimPrefix(r.Path, "/api/v1")
	body, known := bodies[name]
	known = known || r.Method == "GET" || r.Method == "DELETE"
	path := parameter.ReplaceAllStringFunc(r.Path, func(p string) string {
		id, ok := m.ids[strings.Trim(p, "{}")]
		if p == "{keyId}" && strings.Contains(r.Path, "operator-keys") {
			id = m.ids["operator keyId"]
		}
		if own := m.ids[r.Path[strings.LastIndex(r.Path, "/")+1:]+" "+strings.Trim(p, "{}")]; own != "" { // of the action
			id = own
		}
		known = known && ok
		return url.PathEscape(id)
	})
	if name == "GET /rebuilds/{rebuildId}/diff/events" {
		path += "?tenantId=" + m.a.id + "&feature=api_calls&periodKey=2026-05"
	}
	if name == "GET /quota/accounts" {
		path += "?tenantId=" + m.a.id
	}
	path += queries[name]
	return call{method: r.Method, path: path, body: body}, known
}

// queries holds the required query parameters of routes; a stream must end.
var queries = map[string]string{
	"GET /events/stream": "?follow=false&last=100",
	"GET /usage": "?feature=api_calls&from=2026-01-01T00:00:00Z&to=2027-01-01T00:00:00Z&granularity=month&" +
		"groupBy=metadata.region",
	"GET /usage/aggregates/explain": "?feature=api_calls&period=lifetime",
}

func with(path, query string) string {
	if strings.Contains(path, "?") {
		return path + "&" + query
	}
	return path + "?" + query
}

var parameter = regexp.MustCompile(`\{[a-zA-Z]+\}`)

// allowed returns a key that a route accepts.
func (m *isolationFixture) allowed(r auth.Route) string {
	switch {
	case r.Who == auth.Tenant:
		return m.a.key
	case r.Who == auth.AnyKey:
		return m.eventsReader
	case slices.Contains(r.Scopes, "audit"):
		return m.audit
	case slices.Contains(r.Scopes, "billing"):
		return m.billing
	}
	return m.admin
}

// denied lists the keys that a route must refuse, with the code of the refusal.
func (m *isolationFixture) denied(r auth.Route) map[string][2]string {
	keys := map[string][2]string{"suspended": {m.suspended, "tenant_suspended"}}
	if r.Who == auth.AnyKey {
		return keys
	}
	if r.Who == auth.Operator {
		keys["tenant"] = [2]string{m.a.key, "forbidden"}
	} else {
		keys["lacking scope"] = [2]string{m.eventsReader, "forbidden"}
		if slices.Contains(r.Scopes, commands.ScopeEventsRead) {
			keys["lacking scope"] = [2]string{m.a.writer, "forbidden"}
		}
	}
	if r.Who == auth.Tenant {
		for name, key := range map[string]string{"billing": m.billing, "audit": m.audit, "admin": m.admin, "bootstrap": bootstrap} {
			keys[name] = [2]string{key, "forbidden"}
		}
		return keys
	}
	for name, key := range map[string]string{"billing": m.billing, "audit": m.audit} {
		if !slices.Contains(r.Scopes, name) {
			keys[name+" only"] = [2]string{key, "forbidden"}
		}
	}
	return keys
}

func TestP9_EveryRouteRefusesKeysWithoutAccess(t *testing.T) {
	m := newIsolationFixture(t)
	before, cases := m.stored(), 0
	same := ""
	for _, route := range http.Routes() {
		if route.Who == auth.Public {
			continue
		}
		base, known := m.sample(route)
		if !known {
			t.Errorf("%s %s has no case in the isolation matrix", route.Method, route.Path)
			continue
		}
		for name, bad := range m.bad {
			c := base
			c.key, c.header = bad.key, bad.header
			got := m.do(c)
			m.refused(got, 401, "unauthenticated")
			if s := withoutIDs(got.body); same == "" {
				same = s
			} else if s != same {
				t.Errorf("%s %s, key %s: another body than the rest: %s", route.Method, route.Path, name, got.body)
			}
			cases++
		}
		c := base
		c.path = with(c.path, "key="+m.a.key+"&access_token="+m.a.key)
		m.refused(m.do(c), 401, "unauthenticated")
		key := m.allowed(route)
		two := m.raw("%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n",
			c.method,
			base.path, key, key)
		if !strings.HasPrefix(two, "HTTP/1.1 401") || !strings.Contains(two, `"code":"unauthenticated"`) {
			t.Errorf("%s %s takes two keys: %.300q", route.Method, route.Path, two)
		}
		for name, pair := range m.denied(route) {
			c := base
			c.key = pair[0]
			if got := m.do(c); !t.Run("", func(t *testing.T) { m.refused(got, 403, pair[1]) }) {
				t.Errorf("%s %s took the key %s", route.Method, route.Path, name)
			}
			cases++
		}
	}
	m.same("events of refused requests", m.stored(), before)
	t.Logf("%d cases", cases)
}

// varying matches the members that differ between equal answers.
var varying = regexp.MustCompile(`"(instance|traceId)":"[^"]*"`)

func withoutIDs(body []byte) string { return varying.ReplaceAllString(string(body), `"$1":""`) }

func TestP9_EveryRouteAcceptsTheRightKey(t *testing.T) {
	m := newIsolationFixture(t)
	// Deletes and reopenings last, because the other requests need the deleted entities and pending adjustments.
	routes := http.Routes()
	slices.SortStableFunc(routes, func(a, b auth.Route) int { return rank(a) - rank(b) })
	for _, route := range routes {
		if route.Who == auth.Public {
			continue
		}
		c, _ := m.sample(route)
		c.key = m.allowed(route)
		if route.Who == auth.Either && !strings.Contains(route.Path, "{tenantId}") && !strings.Contains(route.Path, "{deliveryId}") {
			c.path = with(c.path, "tenantId="+m.a.id)
		}
		if strings.HasSuffix(route.Path, "/commit") { // the other requests need the reservation
			m.want(201, holding(m.a.key, "to-commit", 1, 86400))
			c.path = strings.Replace(c.path, m.ids["reservationId"], "to-commit", 1)
		}
		m.archivedFor(route)
		got := m.do(c)
		if got.status < 200 || got.status > 299 {
			t.Errorf("%s %s: %d %s", route.Method, route.Path, got.status, got.body)
		}
		for _, secret := range []string{m.a.key, m.b.key, m.admin, m.audit, m.billing, m.eventsReader, bootstrap} {
			if strings.Contains(string(got.body), secret[8:]) {
				t.Errorf("%s %s shows a key", route.Method, route.Path)
			}
		}
	}
}

// TestP9_EntitiesOfAnotherTenantAreNotFound requests A's entities and unknown entities with B's key,
// and compares the answers byte for byte.
func TestP9_EntitiesOfAnotherTenantAreNotFound(t *testing.T) {
	m := newIsolationFixture(t)
	nobody := newID().String()
	for _, route := range http.Routes() {
		if route.Who == auth.Public || route.Who == auth.Operator {
			continue
		}
		c, _ := m.sample(route)
		c.key = m.b.key
		ids := map[string][2]string{}
		switch {
		case strings.Contains(route.Path, "{tenantId}"):
			ids["tenantId"] = [2]string{c.path, strings.Replace(c.path, m.a.id, nobody, 1)}
		case strings.Contains(route.Path, "{deliveryId}"):
			ids["deliveryId"] = [2]string{c.path, strings.Replace(c.path, m.ids["deliveryId"], nobody, 1)}
		case route.Who == auth.Either:
			ids["tenantId"] = [2]string{with(c.path, "tenantId="+m.a.id), with(c.path, "tenantId="+nobody)}
		}
		if strings.Contains(route.Path, "{eventId}") {
			ids["eventId"] = [2]string{c.path, strings.Replace(c.path, "secret-of-A", "nobodys-id-", 1)}
		}
		for _, p := range parameter.FindAllString(route.Path, -1) {
			if !slices.Contains([]string{"{eventId}", "{event}", "{reservationId}", "{feature}", "{subject}", "{n}", "{tenantId}",
				"{webhookId}",
				"{deliveryId}", "{thresholdId}"}, p) { // webhooks: TestP9_IDsBelongToTheirTenant; features and schemas belong to no tenant
				t.Errorf("%s %s: %s of another tenant is not asked for", route.Method, route.Path, p)
			}
		}
		if strings.Contains(route.Path, "{event}") {
			ids["event"] = [2]string{c.path, strings.Replace(c.path, m.ids["event"], nobody, 1)}
		}
		if strings.Contains(route.Path, "{reservationId}") {
			ids["reservationId"] = [2]string{c.path, strings.Replace(c.path, m.ids["reservationId"], nobody, 1)}
		}
		for name, pair := range ids {
			theirs, none := c, c
			theirs.path, none.path = pair[0], pair[1]
			got, want := m.do(theirs), m.do(none)
			if got.status != 404 || withoutIDs(got.body) != withoutIDs(want.body) || got.header.Get("Content-Length") == "" {
				t.Errorf("%s %s by %s: A's %d %s, nobody's %d %s", route.Method, route.Path, name, got.status, got.body, want.status,
					want.body)
			}
			m.refused(got, 404, map[string]string{"tenantId": "tenant_not_found", "eventId": "not_found", "event": "not_found",
				"reservationId": "reservation_not_found", "deliveryId": "delivery_not_found"}[name])
		}
		if !strings.Contains(route.Path, "{event") && !strings.Contains(route.Path, "{tenantId}") {
			// the problem's instance would repeat it
			m.checkNoDataOf(m.a, m.do(c), route)
		}
	}
}

func (m *isolationFixture) checkNoDataOf(p *account, a answer, route auth.Route) {
	m.Helper()
	for _, word := range []string{p.id, p.subscription, p.keyID, p.letterID, "secret-of-A", "rejected-of-A"} {
		if strings.Contains(string(a.body), word) {
			m.Errorf("%s %s shows B %s of A: %s", route.Method, route.Path, word, a.body)
		}
	}
	if strings.Contains(fmt.Sprint(a.header), p.id) {
		m.Errorf("%s %s names A in a header", route.Method, route.Path)
	}
}

// TestP9_CursorsBelongToTheirList gives B the cursor of A's list.
func TestP9_CursorsBelongToTheirList(t *testing.T) {
	m := newIsolationFixture(t)
	m.ingest(m.a, batch(event("a1", nil), event("a2", nil)))
	next := m.want(200, call{method: "GET", path: "/api/v1/usage/events?limit=1", key: m.a.key})["nextCursor"].(string)
	for _, path := range []string{"/api/v1/usage/events?limit=1&feature=storage", "/api/v1/usage/conflicts?limit=1"} {
		m.refused(m.do(call{method: "GET", path: path + "&cursor=" + next, key: m.a.key}), 400, "cursor_invalid")
	}
	m.refused(m.do(call{method: "GET", path: "/api/v1/usage/events?limit=1&cursor=" + next, key: m.b.key}), 400, "cursor_invalid")
	next = "&cursor=" + m.want(200, call{method: "GET", path: "/api/v1/events?limit=1", key: m.a.key})["nextCursor"].(string)
	for key, path := range map[string]string{m.a.key: "/api/v1/events?limit=1&subject=meterplex.", m.b.key: "/api/v1/events?limit=1",
		m.audit: "/api/v1/events?limit=1"} {
		m.refused(m.do(call{method: "GET", path: path + next, key: key}), 400, "cursor_invalid")
	}
	m.want(200, call{method: "GET", path: "/api/v1/events?limit=1" + next, key: m.a.key})
}
