package http_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
)

// Scopes, roles and topics that no code uses yet are refused by that reason.
func TestInertOffersAreRefused(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	described := string(w.do(call{method: "GET", path: "/openapi.json"}).body)
	before, tried := w.stored(), 0
	for _, o := range domain.Inert() {
		refused := func(c call, code string) {
			t.Helper()
			tried++
			answer := w.do(c)
			var p struct{ Code, Detail string }
			w.must(json.Unmarshal(answer.body, &p))
			if answer.status != 400 || p.Code != code || !strings.Contains(p.Detail, o.Name+" is not available in this version") {
				t.Errorf("%s: %d %s", o.Name, answer.status, answer.body)
			}
		}
		switch o.Kind {
		case domain.OfferedScope:
			for _, route := range http.Routes() {
				if slices.Contains(route.Scopes, o.Name) {
					t.Errorf("%s %s uses the scope %s: delete its entry in domain/available.go", route.Method, route.Path, o.Name)
				}
			}
			if !strings.Contains(described, o.Name+" is not available in this version") {
				t.Errorf("the description of keys does not say that %s is not available", o.Name)
			}
			refused(call{method: "POST", path: "/api/v1/tenants/" + a.id + "/api-keys", key: bootstrap, body: `{"name":"k","scopes":["usage:read","` + o.Name + `"]}`}, "scopes_invalid")
		case domain.OfferedTopic:
			if topic, known := events.TopicOf(o.Name); !known || slices.ContainsFunc(events.Subjects(), func(i events.SubjectInfo) bool { return i.Topic == topic }) {
				t.Errorf("the topic %s is unknown or has subjects: delete its entry in domain/available.go", o.Name)
			}
			refused(call{method: "POST", path: "/api/v1/replays", key: bootstrap, body: `{"topic":"` + o.Name + `","reason":"x","fromTime":"2026-05-01T00:00:00Z"}`}, "topic_invalid")
		}
	}
	if tried == 0 {
		t.Error("no offer of the API is inert: delete this test")
	}
	if w.stored() != before {
		t.Error("a refused request stored an event")
	}
}

// A key of an earlier release may hold a scope that no route used then.
func TestAScopeOfAnOldKeyWorksOnceItIsUsed(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	key, id := w.key(a.id, nil, "usage:read")
	w.refused(w.do(consuming(key, "api_calls", "early", 1)), 403, "forbidden")
	_, err := w.pool.Exec(t.Context(), `UPDATE api_keys SET scopes = scopes || 'entitlements:reserve'::text WHERE id = $1`, id)
	w.must(err)
	rotated := w.want(201, call{method: "POST", path: "/api/v1/tenants/" + a.id + "/api-keys/" + id + "/rotate", key: bootstrap, body: `{"overlapSeconds":60}`})
	if !slices.Contains(rotated["scopes"].([]any), any("entitlements:reserve")) {
		t.Errorf("the rotated key has the scopes %v", rotated["scopes"])
	}
	w.want(200, consuming(rotated["secret"].(string), "api_calls", "late", 1))
}
