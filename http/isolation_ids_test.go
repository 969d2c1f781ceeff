package http_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/auth"
)

// TestP9_IDsBelongToTheirTenant combines one tenant's id with another tenant's entity, on
// every route that has such parameters. The answer must equal that for an unknown entity.
// A new kind of id parameter fails until it is listed here.
func TestP9_IDsBelongToTheirTenant(t *testing.T) {
	m := newIsolationFixture(t)
	_, spare := m.key(m.b.id, nil, "usage:read")
	webhook, delivery := m.webhookOf(m.b)
	threshold := m.thresholdOf(m.b)
	of := map[string]string{"keyId": spare, "subscriptionId": m.b.subscription, "reservationId": "held-of-B", "webhookId": webhook,
		"deliveryId": delivery, "thresholdId": threshold} // B's
	own := []string{"tenantId", "eventId", "event",
		"feature"} // covered by TestP9_EntitiesOfAnotherTenantAreNotFound
	platforms := []string{"deadLetterId", "lookupKey", "key", "priceKey", "name", "rebuildId", "replayId", "sagaId", "pushId", "periodKey",
		"adjustmentId", "subject", "n"}
	doc, before, cases := m.describedRoutes(), m.stored(), 0
	for _, route := range http.Routes() {
		c, _ := m.sample(route)
		if c.key = m.allowed(route); route.Who == auth.Public {
			continue
		}
		if route.Who == auth.Either {
			c.key = m.a.key
		}
		ask := func(name, theirs, none string) {
			t.Helper()
			a, b := c, c
			a.path, b.path = theirs, none
			got, want := m.do(a), m.do(b)
			if got.status != want.status || withoutIDs(got.body) != withoutIDs(want.body) || strings.Contains(route.Path, "{"+name+"}") &&
				got.status != 404 {
				t.Errorf("%s %s by %s: another's %d %s, nobody's %d %s", route.Method, route.Path, name, got.status, got.body, want.status,
					want.body)
			}
			cases++
		}
		for _, p := range parameter.FindAllString(route.Path, -1) {
			name := strings.Trim(p, "{}")
			id, known := of[name]
			if !known && !slices.Contains(own, name) && !slices.Contains(platforms, name) {
				t.Errorf("%s %s: whose is a %s?", route.Method, route.Path, name)
			}
			if !known {
				continue
			}
			mine := m.ids[name]
			if strings.Contains(route.Path, "operator-keys") { // a tenant key is not an operator key
				mine = m.ids["operator keyId"]
			}
			ask(name, strings.Replace(c.path, url.PathEscape(mine), id, 1), strings.Replace(c.path, url.PathEscape(mine), newID().String(),
				1))
		}
		for _, p := range doc.Paths[route.Path][strings.ToLower(route.Method)].Parameters {
			if id, known := of[p.Name]; known && p.In == "query" && route.Who != auth.Operator {
				ask(p.Name, with(c.path, p.Name+"="+id), with(c.path, p.Name+"="+newID().String()))
			} else if p.In == "query" && strings.HasSuffix(p.Name, "Id") && !known && !(p.Name == "eventId" && route.Who == auth.Operator) &&
				!slices.Contains([]string{"tenantId", "correlationId", "externalId"}, p.Name) {
				t.Errorf("%s %s: whose is a %s?", route.Method, route.Path, p.Name)
			}
		}
	}
	m.same("events that were stored", m.stored(), before)
	if cases < 7 {
		t.Errorf("only %d cases", cases)
	}
}

func rank(r auth.Route) int {
	if strings.HasSuffix(r.Path, "/erase") { // of an archived tenant
		return 3
	}
	if strings.Contains(r.Path, "/offboard") { // it refuses the changes of the others
		return 2
	}
	if r.Method == "DELETE" || strings.HasSuffix(r.Path, "/reopen") {
		return 1
	}
	return 0
}

// archivedFor lets the tenant be ARCHIVED for the routes that need that, which are last.
func (m *isolationFixture) archivedFor(r auth.Route) {
	m.Helper()
	if strings.HasSuffix(r.Path, "/erase") {
		m.exec(`UPDATE tenants SET status = 'ARCHIVED' WHERE id = $1`, m.a.id)
	}
}

// TestP9_IDsOfTwoTenantsAreIndependent: an id of usage or of a reservation is any printable text, and belongs to its tenant.
func TestP9_IDsOfTwoTenantsAreIndependent(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccount("B")
	for n, id := range []string{"r", `"\/!~%2F`, "a/b/commit", "u/x", "'OR'1", strings.Repeat("~", 255)} {
		for amount, of := range map[int]*account{1: a, 10: b} {
			w.want(201, holding(of.key, id, amount, 60))
			w.want(200, consuming(of.key, "api_calls", id, amount))
			w.accept(of, event(fmt.Sprint("sent-", n), map[string]any{"amount": amount}))
			path := reservationsPath + "/" + strings.ReplaceAll(url.PathEscape(id), "~", "%7E")
			w.same("the reservation", valuesOf(w.want(200, call{method: "GET", path: path, key: of.key}), "reservationId", "amount"),
				fmt.Sprint(id, " ", amount))
			w.want(200, call{"POST", path + "/commit", of.key, nil, map[string]any{"eventId": fmt.Sprint("use", n), "amount": amount}})
		}
	}
	w.fold()
	w.same("the accounts", []string{w.accountOf(a), w.accountOf(b)}, []string{"18 0 0", "180 0 0"})
}
