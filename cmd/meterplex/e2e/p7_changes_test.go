package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// change is a change at one instance after which another one must not grant.
type change struct {
	name string
	do   func(d *changesTest, x *changedTenant)
	// code is the answer of the other instance from then on, and reason that of checks.
	code, reason string
	// atOnce: consume and hold are refused at once, by the log. Other requests may take a second.
	atOnce bool
}

type changesTest struct {
	*deployment
	a, b *instance
}

// changedTenant is a tenant with the id of its key.
type changedTenant struct {
	*tenant
	keyID string
}

func changes() []change {
	patch := func(body object) func(d *changesTest, x *changedTenant) {
		return func(d *changesTest, x *changedTenant) {
			d.ask(d.operator, http.MethodPatch, d.a, "/api/v1/tenants/"+x.id+"/subscriptions/"+x.subscription, body, nil, http.StatusOK)
		}
	}
	return []change{
		{"limit lowered", patch(object{"plan": "lower"}), "quota_exceeded", "quota_exceeded", true},
		{"plan without the feature", patch(object{"plan": "without"}), "feature_not_found", "not_entitled", true},
		{"subscription cancelled", patch(object{"status": "CANCELLED"}), "no_active_subscription", "no_active_subscription", true},
		{"key revoked", func(d *changesTest, x *changedTenant) {
			d.ask(d.operator, http.MethodDelete, d.a, "/api/v1/tenants/"+x.id+"/api-keys/"+x.keyID, nil, nil, http.StatusNoContent)
		}, "unauthenticated", "", false},
		{"tenant suspended", func(d *changesTest, x *changedTenant) {
			d.ask(d.operator, http.MethodPatch, d.a, "/api/v1/tenants/"+x.id, object{"status": "SUSPENDED"}, nil, http.StatusOK)
		}, "tenant_suspended", "", false},
	}
}

// P7: a lowered limit, a changed plan, a cancelled subscription and a revoked key take effect on another instance: at once for consume
// and hold if the log decides, and within a second (printed) for keys, enforced usage and checks.
func TestP7_ChangesTakeEffectOnEveryInstance(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	d := &changesTest{deployment: newDeployment(t)}
	d.pipe = "postgres"
	d.a = d.serve("")
	d.b = d.serve("api")
	d.limitedPlans(d.a)
	d.putPlan(d.a, "lower", http.StatusCreated, 10)
	d.ask(d.operator, http.MethodPut, d.a, "/api/v1/features/else", object{"name": "Else", "type": "METERED", "unit": "each"}, nil, http.StatusCreated)
	d.ask(d.operator, http.MethodPut, d.a, "/api/v1/plans/without", object{"name": "Without", "entitlements": []object{
		{"feature": "else", "limit": nil, "limitBehavior": "SOFT", "resetPeriod": "NEVER"}}}, nil, http.StatusCreated)
	for _, c := range changes() {
		latest := map[string]time.Duration{}
		for range 2 {
			for kind, took := range d.change(c) {
				latest[kind] = max(latest[kind], took)
			}
		}
		t.Logf("%s: the other instance refuses after at most %v", c.name, latest)
	}
}

// change makes a change at one instance, and returns after which time the other one refused each kind of request.
func (d *changesTest) change(c change) map[string]time.Duration {
	d.t.Helper()
	x := &changedTenant{tenant: d.limitedTenant(d.a, d.b)}
	x.keyID, x.key = d.newKey(d.a, x.tenant, "entitlements:reserve", "entitlements:read", "usage:write")
	d.awaitKeys(d.b, []*tenant{x.tenant})
	d.mustSend(x.tenant, consumeOf("before", 20), http.StatusOK, d.b)
	kinds := map[string]func(id string) *request{
		"consume": func(id string) *request { return consumeOf(id, 1) },
		"hold":    func(id string) *request { return holdOf(id, 1, 3600) },
		"ingest":  func(id string) *request { return ingestOf(id, 1, time.Now()) },
		"check":   func(string) *request { return &request{method: http.MethodGet, path: unitsPath + "/check"} },
	}
	for kind, next := range kinds { // the other instance has the tenant in its caches
		if r := next("warm-" + kind); d.send(x.tenant, r, d.b) && c.refuses(d.t, r) {
			d.t.Errorf("before %s: %s is refused: %s", c.name, kind, r.answer)
		}
	}
	c.do(d, x)
	changed := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	took := map[string]time.Duration{}
	for kind, next := range kinds {
		all.Go(func() {
			after := d.refusedAfter(c, x.tenant, kind, next, changed)
			mu.Lock()
			defer mu.Unlock()
			took[kind] = after.Round(time.Millisecond)
		})
	}
	all.Wait()
	return took
}

// refusedAfter sends requests of a kind until one is refused, and returns how long after a change that was sent.
func (d *changesTest) refusedAfter(c change, x *tenant, kind string, next func(id string) *request, changed time.Time) time.Duration {
	for n := 0; time.Since(changed) < patience; n++ {
		sent, r := time.Now(), next(fmt.Sprint(kind, "-", n))
		if !d.send(x, r, d.b) {
			return 0
		}
		if c.refuses(d.t, r) {
			return sent.Sub(changed)
		}
		if c.atOnce && (kind == "consume" || kind == "hold") {
			d.t.Errorf("%s: %s was granted after the change: %s", c.name, kind, r.answer)
		}
		time.Sleep(2 * time.Millisecond)
	}
	d.t.Errorf("%s takes no effect on %s", c.name, kind)
	return patience
}

// refuses reports whether an answer is the refusal that the change causes. Any other refusal is an error.
func (c change) refuses(t testing.TB, r *request) bool {
	t.Helper()
	code, want := r.outcome(t).Code, c.code
	if r.method == http.MethodGet && code == "" {
		code, want = r.outcome(t).Reason, c.reason
	}
	if code != "" && code != want {
		t.Errorf("%s: %s %s: %d %s", c.name, r.method, r.path, r.status, r.answer)
	}
	return code != ""
}
