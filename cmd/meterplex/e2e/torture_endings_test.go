package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/infra/stripe/stripetest"
	"github.com/meterplex/meterplex/internal/must"
)

// endingsLoad lets a billing provider and endpoints of webhooks be part of the world, and offboards a tenant of its own during the faults.
type endingsLoad struct {
	x       *torture
	fake    *stripetest.Server
	hooks   *hookReceiver
	rng     *rand.Rand
	mu      sync.Mutex
	at      time.Time   // of the fake's clock
	calm    atomic.Bool // the provider and the endpoints answer as they should
	drawn   atomic.Int64
	tenants []*tenant // with billing
	ended   *tenant
	begun   atomic.Bool
	sent    int
	retried atomic.Int64
	refused atomic.Int64 // usage of the tenant that ends
}

// stripeKey is the fake's secret key.
const stripeKey = "sk_test_torture"

func newEndingsLoad(x *torture) *endingsLoad {
	now := time.Now()
	k := &endingsLoad{x: x, at: now, fake: stripetest.New(stripeKey, now.UTC()), rng: rand.New(rand.NewPCG(x.seed, 80))}
	x.t.Cleanup(k.fake.Close)
	k.hooks = newHookReceiver(x.t, &k.calm)
	k.fake.Draw(k.draw)
	return k
}

// settings are those of the instances.
func (k *endingsLoad) settings() []string {
	return []string{"METERPLEX_STRIPE_KEY=" + stripeKey, "METERPLEX_STRIPE_URL=" + k.fake.URL, hooksAllowed}
}

// draw lets a third of the provider's answers fail. The fake calls it one at a time.
func (k *endingsLoad) draw() stripetest.Fault {
	if k.calm.Load() || k.rng.IntN(3) > 0 {
		return stripetest.None
	}
	for {
		// A saved 500 is repeated for a day; the run is shorter.
		if f := stripetest.Fault(1 + k.rng.IntN(int(stripetest.Faults)-1)); f != stripetest.FailSaved {
			k.drawn.Add(1)
			return f
		}
	}
}

// create makes the tenant that ends, and gives tenants a customer and a webhook.
func (k *endingsLoad) create(at *instance, tenants []*tenant) {
	x := k.x
	k.ended = x.createTenants(at, 1)[0]
	x.mu.Lock()
	x.tenants = slices.DeleteFunc(x.tenants, func(t *tenant) bool { return t == k.ended })
	x.mu.Unlock()
	k.tenants = append(slices.Clone(tenants), k.ended)
	var names []string
	must.OK(x.t, x.sql.QueryRow(x.t.Context(), `SELECT array_agg(lookup_key) FROM features`).Scan(&names))
	for _, feature := range names {
		k.fake.AddMeter(stripetest.Meter{Event: feature})
	}
	for n, tenant := range k.tenants {
		k.fake.AddCustomer(customerOf(tenant))
		x.ask(x.operator, http.MethodPut, at, "/api/v1/tenants/"+tenant.id+"/billing", object{"provider": "stripe", "customer": customerOf(tenant)}, nil, http.StatusOK)
		if n%2 == 0 || tenant == k.ended {
			var w struct{ ID, Secret string }
			url := k.hooks.endpoint(tenant.id)
			x.ask(x.operator, http.MethodPost, at, "/api/v1/tenants/"+tenant.id+"/webhooks", object{"url": url, "events": []string{"period.closed", "push.failed", "adjustment.pending"}}, &w, http.StatusCreated)
			k.hooks.know(tenant.id, w.ID, w.Secret)
		}
	}
	x.awaitKeys(at, []*tenant{k.ended})
	x.ingest(at, k.ended, "accepted", events("ends", 20, features()[0])...)
}

func customerOf(x *tenant) string { return "cus_" + strings.ReplaceAll(x.id, "-", "") }

// requests begins the offboarding once, sends usage of the tenant that ends, and retries what the provider refused.
func (k *endingsLoad) requests(ctx context.Context, rng *rand.Rand) {
	k.tick()
	path := "/api/v1/tenants/" + k.ended.id
	switch rng.IntN(4) {
	case 0:
		if !k.begun.Load() {
			status, body := k.x.attempt(ctx, k.x.operator, http.MethodPost, path+"/offboard", object{"reason": "torture"}, nil, "Idempotency-Key", "the-end")
			if status != 0 && status != http.StatusAccepted && status != http.StatusConflict {
				k.x.t.Errorf("an offboarding was answered with %d %s", status, body)
			}
			k.begun.Store(status == http.StatusAccepted || status == http.StatusConflict)
		}
	case 1:
		k.sent++
		e := object{"type": "usage", "eventId": fmt.Sprint("late-", k.sent), "feature": features()[0], "amount": 1, "timestamp": time.Now().UTC().Format(time.RFC3339Nano)}
		switch status, body := k.x.attempt(ctx, k.ended.key, http.MethodPost, "/api/v1/usage/events", object{"events": []object{e}}, nil); status {
		case 0, http.StatusAccepted, http.StatusMultiStatus:
		case http.StatusForbidden, http.StatusUnauthorized:
			k.refused.Add(1)
		default:
			k.x.t.Errorf("usage of a tenant that ends was answered with %d %s", status, body)
		}
	case 2:
		k.retry(ctx, "FAILED")
	}
}

// tick moves the fake's clock to now.
func (k *endingsLoad) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.fake.Advance(now.Sub(k.at))
	k.at = now
}

// retry retries the pushes of a state.
func (k *endingsLoad) retry(ctx context.Context, state string) {
	var page struct{ Data []struct{ ID string } }
	if status, _ := k.x.attempt(ctx, k.x.operator, http.MethodGet, "/api/v1/pushes?limit=200&state="+state, nil, &page); status != http.StatusOK {
		return
	}
	for _, p := range page.Data {
		status, body := k.x.attempt(ctx, k.x.operator, http.MethodPost, "/api/v1/pushes/"+p.ID+"/retry", object{"reason": "torture"}, nil, "Idempotency-Key", uuid.NewString())
		if status == http.StatusOK {
			k.retried.Add(1)
		} else if status != 0 && status != http.StatusConflict {
			k.x.t.Errorf("the retry of a push was answered with %d %s", status, body)
		}
	}
}

// endingTime bounds the waits at the end: an attempt whose instance was killed is repeated after two minutes.
const endingTime = 8 * time.Minute

// settlePushes waits until all pushes are delivered, and compares the provider's sums with them and with what is billable.
func (k *endingsLoad) settlePushes() string {
	x, state := k.x, ""
	if !x.becomesTrue(endingTime, func(ctx context.Context) bool {
		k.tick()
		k.retry(ctx, "FAILED")
		k.retry(ctx, "UNKNOWN")
		x.sleep(time.Second)
		var open, planning int64
		err := x.sql.QueryRow(ctx, `SELECT (SELECT count(*) FROM pushes WHERE state <> 'DELIVERED'), (SELECT count(*) FROM sagas WHERE kind = 'billing_push' AND step = 'plan' AND ended_at IS NULL)`).Scan(&open, &planning)
		state = fmt.Sprintf("%d pushes are open, %d are not stored yet: %v", open, planning, err)
		return err == nil && open+planning == 0
	}) {
		x.t.Errorf("pushes do not settle: %s", state)
	}
	return k.compareSums()
}

// billableSQL returns the billable figures of closed periods.
const billableSQL = `SELECT feature, sum(amount)::text FROM (
 SELECT l.feature, l.amount FROM period_lines l JOIN last USING (tenant_id, period_key, snapshot) UNION ALL
 SELECT a.feature, a.amount FROM adjustments a JOIN last USING (tenant_id, period_key, snapshot) WHERE a.state = 'APPROVED') b GROUP BY feature`

func (k *endingsLoad) compareSums() string {
	x, pushes := k.x, 0
	for _, tenant := range k.tenants {
		delivered := k.sums(`SELECT event, sum(amount)::text FROM pushes WHERE state = 'DELIVERED' AND tenant_id = $1 GROUP BY event`, tenant.id)
		billable := k.sums(`WITH last AS (SELECT DISTINCT ON (period_key) tenant_id, period_key, snapshot, change FROM period_changes WHERE tenant_id = $1 ORDER BY period_key, position DESC)
 `+billableSQL, tenant.id)
		closed := x.count(`SELECT count(*) FROM (SELECT DISTINCT ON (period_key) change FROM period_changes WHERE tenant_id = $1 ORDER BY period_key, position DESC) c WHERE change <> 'closed'`, tenant.id) == 0
		for event, sum := range delivered {
			if counts := k.fake.Sum(customerOf(tenant), event).String(); counts != sum {
				x.t.Errorf("the provider counts %s of %s of %s, delivered are %s", counts, event, tenant.id, sum)
			}
			if is := billable[event]; closed && is != sum && (is != "" || sum != "0") {
				x.t.Errorf("%s of %s of %s is billable, delivered are %s", is, event, tenant.id, sum)
			}
		}
		for event, sum := range billable {
			if closed && delivered[event] == "" && sum != "0" {
				x.t.Errorf("%s of %s of %s is billable, and nothing is delivered", sum, event, tenant.id)
			}
		}
		pushes += x.count(`SELECT count(*) FROM pushes WHERE tenant_id = $1`, tenant.id)
	}
	total, identifiers := new(big.Int), map[string]bool{}
	for _, e := range k.fake.Counted() {
		if total.Add(total, e.Value); identifiers[e.Identifier] {
			x.t.Errorf("the provider has counted %s twice", e.Identifier)
		}
		identifiers[e.Identifier] = true
	}
	return fmt.Sprintf("%d pushes in %d requests of which %d failed, %d retries by an operator; the provider counts %s", pushes, len(k.fake.Requests()), k.drawn.Load(), k.retried.Load(), total)
}

func (k *endingsLoad) sums(sql, tenant string) map[string]string {
	rows, err := k.x.sql.Query(k.x.t.Context(), sql, tenant)
	if err != nil {
		k.x.t.Fatal(err)
	}
	defer rows.Close()
	sums := map[string]string{}
	for rows.Next() {
		var name, sum string
		if err := rows.Scan(&name, &sum); err != nil {
			k.x.t.Fatal(err)
		}
		sums[name] = sum
	}
	if err := rows.Err(); err != nil {
		k.x.t.Fatal(err)
	}
	return sums
}

// settleOffboarding waits until the tenant is archived, and compares its manifest with its hash.
func (k *endingsLoad) settleOffboarding() string {
	x := k.x
	k.calm.Store(true)
	x.abandonRebuilds(x.t.Context())
	var o struct {
		State, Step, ManifestHash string
		Manifest                  json.RawMessage
	}
	if !x.becomesTrue(endingTime, func(ctx context.Context) bool {
		path := "/api/v1/tenants/" + k.ended.id + "/offboard"
		if !k.begun.Load() { // the faults were shorter
			status, _ := x.attempt(ctx, x.operator, http.MethodPost, path, object{"reason": "torture"}, nil, "Idempotency-Key", "the-end")
			k.begun.Store(status == http.StatusAccepted || status == http.StatusConflict)
		}
		status, _ := x.attempt(ctx, x.operator, http.MethodGet, path, nil, &o)
		k.tick()
		k.retry(ctx, "FAILED")
		x.sleep(time.Second)
		return status == http.StatusOK && o.State == "ARCHIVED"
	}) {
		x.t.Errorf("the tenant is not archived: %s after %s", o.State, o.Step)
	}
	if hash := fmt.Sprintf("%x", sha256.Sum256(o.Manifest)); hash != o.ManifestHash || len(o.Manifest) == 0 {
		x.t.Errorf("the manifest has the SHA-256 %s, its hash is %s: %s", hash, o.ManifestHash, o.Manifest)
	}
	if status, body := x.attempt(x.t.Context(), k.ended.key, http.MethodGet, "/api/v1/usage/aggregates", nil, nil); status != http.StatusUnauthorized {
		x.t.Errorf("the key of an archived tenant was answered with %d %s", status, body)
	}
	return fmt.Sprintf("%d bytes of manifest; %d requests of the tenant were refused while it ended", len(o.Manifest), k.refused.Load())
}
