package http_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http"
)

// frozen is the keys of an instance that is frozen once it has admitted requests: they go on with the state of their keys then, when it is
// resumed.
type frozen struct {
	catalogue.Keyring
	armed    atomic.Bool
	admitted chan struct{}
	resumed  chan struct{}
}

func (f *frozen) Find(ctx context.Context, hash [32]byte) (*domain.APIKey, *domain.Tenant, commands.CatalogueAt, error) {
	key, tenant, seen, err := f.Keyring.Find(ctx, hash)
	if f.armed.Load() {
		f.admitted <- struct{}{}
		<-f.resumed
	}
	return key, tenant, seen, err
}

func (f *frozen) in(s *http.Server) { f.Keyring, s.Keys = s.Keys, f }

// while sends calls to the instance, which is frozen after their admission, until meanwhile has returned, and returns the answers.
func (f *frozen) while(w *testService, calls []call, meanwhile func()) []answer {
	w.Helper()
	f.admitted, f.resumed = make(chan struct{}), make(chan struct{})
	f.armed.Store(true)
	answers, done := make([]answer, len(calls)), make(chan struct{})
	for i, c := range calls {
		go func() {
			answers[i] = w.do(c)
			done <- struct{}{}
		}()
	}
	for range calls {
		<-f.admitted
	}
	f.armed.Store(false)
	meanwhile()
	close(f.resumed)
	for range calls {
		<-done
	}
	return answers
}

// refuses checks that a frozen instance refuses calls with a code, and stores no event.
func (f *frozen) refuses(w *testService, calls []call, status int, code string, end func()) {
	w.Helper()
	var before int
	for i, a := range f.while(w, calls, func() { end(); before = w.stored() }) {
		w.Logf("%s %s", calls[i].method, calls[i].path)
		w.refused(a, status, code)
	}
	w.same("the rows of the log", w.stored(), before)
}

// changesOf lists requests that record usage of a tenant, hold its limit, and change it.
func changesOf(a *account) []call {
	const limits = "/api/v1/entitlements/api_calls/"
	return []call{
		{"POST", "/api/v1/usage/events", a.key, nil, batch(event("frozen", nil))},
		{"POST", "/api/v1/usage/events", a.key, map[string]string{"Prefer": "handling=strict"},
			batch(event("strict", nil), event("strict-2", nil))},
		{"POST", limits + "consume", a.key, nil, `{"eventId":"consumed","amount":1}`},
		{"POST", limits + "reservations", a.key, nil, `{"reservationId":"late","amount":1,"ttlSeconds":60}`},
		{"POST", limits + "reservations/held/commit", a.key, nil, `{"eventId":"committed","amount":1}`},
		{"POST", limits + "reservations/held/extend", a.key, nil, `{"ttlSeconds":7200}`},
		{"DELETE", limits + "reservations/held", a.key, nil, nil},
		{"POST", "/api/v1/tenants/" + a.id + "/webhooks", a.key, nil, `{"url":"https://example.com/x","events":["period.closed"]}`},
		{"POST", "/api/v1/tenants/" + a.id + "/thresholds", a.key, map[string]string{"Idempotency-Key": "once"}, `{"percent":90}`},
	}
}

// The last step of an offboarding does not wait for an instance that was frozen: on its return it records no event of the archived tenant.
func TestP8_AFrozenInstanceRecordsNothingOfAnArchivedTenant(t *testing.T) {
	f := &frozen{}
	w := newOffboardingWorld(t, f.in)
	f.refuses(w.testService, changesOf(w.a), 401, "unauthenticated", func() {
		w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
		w.until("", false)
		w.same("status", w.status(), "ARCHIVED")
	})
	w.same("the provider's sum", w.provider.sum(), 18)
}

// A key that ends while an instance is frozen is refused on its return, as by any other instance; so is the key of a suspended tenant.
func TestAFrozenInstanceRefusesAKeyThatEnds(t *testing.T) {
	f := &frozen{}
	w, a := newServiceWithAccount(t, f.in)
	keys := func() string { return "/api/v1/tenants/" + a.id + "/api-keys/" + a.keyID }
	for _, c := range []struct {
		what   string
		status int
		code   string
		end    func()
	}{
		{"revoked", 401, "unauthenticated", func() { w.want(204, call{"DELETE", keys(), bootstrap, nil, nil}) }},
		{"rotated", 401, "unauthenticated", func() {
			w.want(201, call{"POST", keys() + "/rotate", bootstrap, nil, `{"overlapSeconds":0}`})
		}},
		{"expired", 401, "unauthenticated", func() {
			w.exec(`UPDATE api_keys SET expires_at = now() - interval '1 minute' WHERE id = $1`, a.keyID)
		}},
		{"of a suspended tenant", 403, "tenant_suspended", func() {
			w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"status":"SUSPENDED"}`})
		}},
	} {
		a = w.newAccount(c.what)
		w.want(201, call{"POST", "/api/v1/entitlements/api_calls/reservations", a.key, nil,
			`{"reservationId":"held","amount":7,"ttlSeconds":3600}`})
		t.Log(c.what)
		f.refuses(w, changesOf(a), c.status, c.code, c.end)
	}
	a = w.newAccount("not ended")
	for _, got := range f.while(w, changesOf(a)[:2], func() { w.newAccount("another") }) {
		w.same("the answer to a key that did not end", got.status, 202)
	}
}

// An operator's key that is revoked while an instance is frozen makes no change on its return: of a tenant, of the platform, or without an
// event.
func TestAFrozenInstanceRefusesAnOperatorsKeyThatIsRevoked(t *testing.T) {
	f := &frozen{}
	w, a := newServiceWithAccount(t, f.in)
	key, id := w.key("", nil, commands.OperatorScopes()...)
	month := time.Now().UTC().AddDate(0, -1, 0).Format("2006-01")
	w.want(202, call{"POST", periodsOf(a) + "/" + month + "/close", bootstrap, nil, `{"reason":"r"}`})
	saga := "/api/v1/sagas/" + fmt.Sprint(w.want(200, call{method: "GET", path: "/api/v1/sagas", key: bootstrap})["data"].([]any)[0].(map[string]any)["id"])
	f.refuses(w, []call{
		{"PATCH", "/api/v1/tenants/" + a.id, key, nil, `{"name":"B"}`},
		{"POST", "/api/v1/tenants", key, nil, `{"name":"C","class":"small"}`},
		{"DELETE", "/api/v1/tenants/" + a.id + "/api-keys/" + a.keyID, key, nil, nil},
		{"PUT", "/api/v1/features/more", key, nil, `{"name":"More","type":"METERED"}`},
		{"POST", periodsOf(a) + "/2020-01/close", key, nil, `{"reason":"r"}`},
		{"POST", "/api/v1/tenants/" + a.id + "/offboard", key, nil, `{"reason":"r"}`},
		{"POST", "/api/v1/projections/usage_aggregates/rebuilds", key, nil, `{"reason":"r"}`},
		{"POST", "/api/v1/replays", key, nil, `{"topic":"usage.raw","fromTime":"2020-01-01T00:00:00Z","reason":"r"}`},
		{"POST", saga + "/retry", key, nil, `{"reason":"r"}`},
	}, 401, "unauthenticated", func() { w.want(204, call{"DELETE", "/api/v1/operator-keys/" + id, bootstrap, nil, nil}) })
	w.same("retries of the saga", w.want(200, call{method: "GET", path: saga, key: bootstrap})["retries"], nil)
}
