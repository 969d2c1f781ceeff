package http_test

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/internal/tier"
)

// TestAnIdempotencyKeyForTwoTenantsAtOnce sends two concurrent requests under one key,
// for tenants of different partitions, which share no lock. One takes effect; the other
// is refused because the key was used.
func TestAnIdempotencyKeyForTwoTenantsAtOnce(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccountIn("B", func(p int16) bool { return p != a.partition() })
	tenants := []string{a.id, b.id}
	for round := range tier.Draws(t, 10, 40) {
		var both sync.WaitGroup
		answers := make([]answer, len(tenants))
		for i, tenant := range tenants {
			both.Go(func() {
				answers[i] = w.do(call{"POST", "/api/v1/tenants/" + tenant + "/api-keys", bootstrap,
					map[string]string{"Idempotency-Key": fmt.Sprint("both ", round)}, `{"name":"k","scopes":["usage:read"]}`})
			})
		}
		both.Wait()
		slices.SortFunc(answers, func(a, b answer) int { return a.status - b.status })
		if answers[0].status != 201 {
			t.Fatalf("round %d: %d %s", round, answers[0].status, answers[0].body)
		}
		w.refused(answers[1], 422, "idempotency_key_reused")
	}
}

// TestAnIdempotencyKeyIsOfItsCaller: another caller's key has a decision of its own. A refusal is no answer to repeat.
func TestAnIdempotencyKeyIsOfItsCaller(t *testing.T) {
	w := newTestService(t)
	other, _ := w.key("", nil, "admin")
	former := w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"A","class":"small","externalIds":["crm-1"]}`})["id"].(string)
	c := call{"POST", "/api/v1/tenants", bootstrap, map[string]string{"Idempotency-Key": "k"},
		`{"name":"B","class":"small","externalIds":["crm-1"]}`}
	w.refused(w.do(c), 409, "external_id_taken")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + former, bootstrap, nil, `{"externalIds":[]}`})
	first := w.want(201, c)
	w.same("a repetition", w.want(201, c)["id"], first["id"])
	c.key, c.body = other, `{"name":"C","class":"small"}`
	if w.want(201, c)["id"] == first["id"] {
		t.Error("another caller got the answer to the first one")
	}
}

// TestARepeatUnderItsKeyGetsTheFirstAnswer on each route that takes an Idempotency-Key: it appends nothing and shows no secret again, and
// another
// request under the key is refused. The log holds the reason of each change that takes one in a header, and times in UTC (TestMain sets
// another
// zone). A repeat that arrives after the answer was dropped is refused.
func TestARepeatUnderItsKeyGetsTheFirstAnswer(t *testing.T) {
	m := newIsolationFixture(t)
	doc, sent, routes := m.describedRoutes(), map[string]call{}, http.Routes()
	slices.SortStableFunc(routes, func(a, b auth.Route) int { return rank(a) - rank(b) })
	for n, route := range routes {
		takesKey := false
		for _, p := range doc.Paths[route.Path][strings.ToLower(route.Method)].Parameters {
			takesKey = takesKey || p.Name == "Idempotency-Key"
		}
		if !takesKey {
			if route.Reasoned {
				t.Errorf("%s takes a reason and no key", route.Name())
			}
			continue
		}
		c, _ := m.sample(route)
		if text, is := c.body.(string); is {
			c.body = strings.Replace(text, `,"dryRun":true`, "", 1)
		}
		key, reason := map[string]string{"Idempotency-Key": "once " + route.Name()}, fmt.Sprintf("because Ü%d", n)
		if c.key, c.header = bootstrap, maps.Clone(key); route.Reasoned {
			c.header[edge.HeaderReason] = url.PathEscape(reason)
		}
		m.archivedFor(route)
		first := m.do(c)
		stored := m.logged()
		again := m.do(c)
		secret := strings.Contains(string(first.body), `"secret":"`)
		same := string(again.body) == string(first.body) || secret &&
			regexpID.FindString(string(again.body)) == regexpID.FindString(string(first.body))
		if first.status/100 != 2 || again.status/100 != 2 || !same || strings.Contains(string(again.body), `"secret":"`) ||
			m.logged() != stored {
			t.Errorf("%s: first %d %s, again %d %s, which appends %d events", route.Name(), first.status, first.body, again.status,
				again.body,
				m.logged()-stored)
		}
		m.refused(m.do(call{"POST", "/api/v1/tenants", bootstrap, key, `{"name":"another","class":"small"}`}), 422,
			"idempotency_key_reused")
		if route.Reasoned && len(linesWith(m.loggedEvents(nil), `"reason":"`+reason+`"`)) == 0 {
			t.Errorf("%s: no event holds the reason", route.Name())
		}
		sent[route.Name()] = c
	}
	for _, line := range m.loggedEvents(nil) {
		m.checkUTC("an event", []byte(line))
	}
	m.asOwner(`UPDATE idempotency_answers SET created_at = now() - interval '31 days'`)
	var expired int
	m.must(m.pool.QueryRow(t.Context(), `SELECT expire_answers('30 days', 1000)`).Scan(&expired))
	stored := m.logged()
	for name, c := range sent {
		if got := m.do(c); got.status != 409 || !strings.Contains(string(got.body), "idempotency_answer_expired") || m.logged() != stored {
			t.Errorf("%s, without its answer: %d %s", name, got.status, got.body)
		}
	}
	if expired < len(sent) || len(sent) < 20 {
		t.Errorf("%d answers to %d changes expired", expired, len(sent))
	}
}

var regexpID = regexp.MustCompile(`"id":"[0-9a-f-]{36}"`)
