package http_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/http"
)

// TestEntitlementsAreWrittenAlikeForEveryType: a client sends all members of each
// entitlement; those without a meaning for a BOOLEAN feature are ignored.
func TestEntitlementsAreWrittenAlikeForEveryType(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	var list []any
	for _, feature := range []string{"api_calls", "storage", "sso"} {
		list = append(list, map[string]any{"feature": feature, "limit": nil, "limitBehavior": "HARD", "resetPeriod": "NEVER",
			"onIngest": "record"})
	}
	plan := map[string]any{"name": "Whole", "entitlements": list}
	w.want(201, call{"PUT", "/api/v1/plans/Whole", bootstrap, nil, map[string]any{"name": "Another", "entitlements": []any{}}})
	made := w.want(201, call{"PUT", "/api/v1/plans/whole", bootstrap, nil, plan})
	if got, sent := fmt.Sprint(made["entitlements"]), fmt.Sprint(list); got != sent {
		t.Errorf("sent %s, answered %s", sent, got)
	}
	w.same("kept", fmt.Sprint(w.want(200, call{"GET", "/api/v1/plans/whole", bootstrap, nil, nil})["entitlements"]), fmt.Sprint(list))
	a := w.newAccount("A")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"plan":"whole"}`})
	w.fold()
	check := w.want(200, call{method: "GET", path: "/api/v1/entitlements/sso/check", key: a.key})
	if delete(check, "asOfPosition"); fmt.Sprint(check) != "map[allowed:true feature:sso type:BOOLEAN]" {
		t.Errorf("%v", check)
	}
	w.same("the answer", verdicts(w.ingest(a, batch(event("b", map[string]any{"feature": "sso"}))))[0]["code"], "not_entitled")
}

// TestARepeatIsAnsweredAlsoOnceTheKeyHasExpired: the answer is the first one, at any
// time.
func TestARepeatIsAnsweredAlsoOnceTheKeyHasExpired(t *testing.T) {
	at := time.Now()
	w := newTestService(t, func(s *http.Server) { s.Catalogue.Now = func() time.Time { return at } })
	a := w.newAccountlessTenant("A")
	c := call{"POST", "/api/v1/tenants/" + a + "/api-keys", bootstrap, map[string]string{"Idempotency-Key": "short"},
		map[string]any{"name": "short-lived", "scopes": []string{"usage:read"},
			"expiresAt": at.Add(time.Minute).UTC().Format(time.RFC3339Nano)}}
	first := w.want(201, c)
	at = at.Add(time.Hour)
	if again := w.want(200, c); again["id"] != first["id"] || again["secret"] != nil {
		t.Errorf("first %v, again %v", first, again)
	}
	c.header = nil
	w.refused(w.do(c), 400, "expires_at_invalid")
}

// TestNamesAreCountedInCharacters checks the length limit that the description documents.
func TestNamesAreCountedInCharacters(t *testing.T) {
	w := newTestService(t)
	name := strings.Repeat("é", 200)
	w.same("the answer", w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil,
		map[string]any{"name": name, "class": "small"}})["name"],
		name)
	unit := strings.Repeat("€", 50)
	w.same("the answer", w.want(201, call{"PUT", "/api/v1/features/euros", bootstrap, nil,
		map[string]any{"name": name, "type": "METERED", "unit": unit}})["unit"], unit)
}
