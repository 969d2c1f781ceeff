package http_test

import (
	"context"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections/entitlements"
)

// secondInstance is a second instance over the same database, with caches of its own.
func (w *testService) secondInstance() *testService {
	w.Helper()
	other := *w
	other.grants = entitlements.NewCache(w.pool, w.pool)
	other.log = w.newLog(w.pool, "other", nil)
	other.store = store.New(w.pool, other.log, store.Config{Catalogue: other.grants.Catalogue})
	other.serve(other.server())
	return &other
}

// confirmGrants runs the cache of grants of an instance until the test ends.
func (w *testService) confirmGrants() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.grants.Run(ctx) }()
	w.Cleanup(func() { stop(); w.must(<-done) })
}

// withinASecond repeats requests until one has the wanted outcome. The last one that may have another is sent within a second; on the busy
// machine of
// the short form, within a minute.
func withinASecond(t *testing.T, what, want string, outcome func() string) {
	t.Helper()
	most := map[bool]time.Duration{true: time.Minute, false: time.Second}[testing.Short()]
	for began := time.Now(); ; {
		sent := time.Since(began)
		got := outcome()
		if got == want {
			return
		}
		if sent > most {
			t.Fatalf("%s: %s instead of %s after %s", what, got, want, most)
		}
	}
}

// A list of reservations knows a feature that another instance defined, also if the cache of grants has not been asked for a while.
func TestAFeatureOfAnotherInstanceHasReservations(t *testing.T) {
	w := newTestService(t)
	other := w.secondInstance()
	w.catalogue()
	a := w.newAccount("A")
	w.fold()
	list := func(feature string) call {
		return call{method: "GET", path: "/api/v1/entitlements/" + feature + "/reservations?tenantId=" + a.id, key: bootstrap}
	}
	other.want(200, list("api_calls"))
	w.want(201, call{"PUT", "/api/v1/features/seats", bootstrap, nil, `{"name":"S","type":"QUOTA"}`})
	other.want(200, list("seats"))
	other.refused(other.do(list("chairs")), 404, "feature_not_found")
}
