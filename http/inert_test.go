package http_test

import (
	"slices"
	"testing"
)

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
