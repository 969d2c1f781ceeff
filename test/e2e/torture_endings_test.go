package e2e

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/stripetest"
)

// endingsLoad lets a billing provider and endpoints of webhooks take part, and offboards a tenant of its own during the faults.
type endingsLoad struct {
	x      *torture
	fake   *stripetest.Server
	hooks  *httptest.Server
	rng    *rand.Rand
	calm   atomic.Bool // the provider and the endpoints answer as they should
	ended  *tenant
	billed []*tenant
	sent   int

	mu      sync.Mutex
	at      time.Time // of the fake's clock
	calls   int
	secrets map[string][]byte // by tenant
	bodies  map[string]string // by event
}

// stripeKey is the fake's secret key.
const stripeKey = "sk_test_torture"

func newEndingsLoad(x *torture) *endingsLoad {
	now := time.Now()
	k := &endingsLoad{x: x, at: now, fake: stripetest.New(stripeKey, now.UTC()), rng: rand.New(rand.NewPCG(x.w.seed, 80)),
		secrets: map[string][]byte{}, bodies: map[string]string{}}
	k.hooks = httptest.NewServer(http.HandlerFunc(k.receive))
	x.t.Cleanup(func() { k.fake.Close(); k.hooks.CloseClientConnections(); k.hooks.Close() })
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
			return f
		}
	}
}

func customerOf(x *tenant) string { return "cus_" + strings.ReplaceAll(x.id, "-", "") }

// begin gives all tenants a customer, and half of them a webhook.
func (k *endingsLoad) begin(at *instance, tenants []*tenant) {
	w := k.x.w
	k.billed = append([]*tenant{k.ended}, tenants...)
	var names []string
	must.OK(w.t, w.sql.QueryRow(w.t.Context(), `SELECT array_agg(lookup_key) FROM features`).Scan(&names))
	for _, feature := range names {
		k.fake.AddMeter(stripetest.Meter{Event: feature})
	}
	for n, tenant := range k.billed {
		path := "/api/v1/tenants/" + tenant.id
		k.fake.AddCustomer(customerOf(tenant))
		w.ask(w.operator, http.MethodPut, at, path+"/billing", object{"provider": "stripe", "customer": customerOf(tenant)}, nil,
			http.StatusOK)
		if n%2 == 0 {
			var made struct{ Secret string }
			in := object{"url": k.hooks.URL + "/" + tenant.id, "events": []string{"period.closed", "push.failed", "adjustment.pending"}}
			w.ask(w.operator, http.MethodPost, at, path+"/webhooks", in, &made, http.StatusCreated)
			key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(made.Secret, "whsec_"))
			must.OK(w.t, err)
			k.mu.Lock()
			k.secrets[tenant.id] = key
			k.mu.Unlock()
		}
	}
	w.ingest(at, k.ended, "accepted", events("ends", 20, features()[0])...)
}

// requests begins the offboarding, sends usage of the tenant that ends, and retries pushes that the provider refused.
func (k *endingsLoad) requests(ctx context.Context, rng *rand.Rand) {
	x, path := k.x, "/api/v1/tenants/"+k.ended.id+"/offboard"
	switch rng.IntN(4) {
	case 0:
		x.operate(ctx, workOffboarded, path, object{}, nil)
	case 1:
		k.sent++
		e := object{"eventId": fmt.Sprint("late-", k.sent), "feature": features()[0], "amount": 1,
			"timestamp": time.Now().UTC().Format(time.RFC3339Nano)}
		switch status, body := x.attempt(ctx, k.ended.key, http.MethodPost, "/api/v1/usage/events", object{"events": []object{e}},
			nil); status {
		case 0, http.StatusAccepted, http.StatusMultiStatus, http.StatusForbidden, http.StatusUnauthorized:
		default:
			x.t.Errorf("usage of a tenant that ends was answered with %d %s", status, body)
		}
	case 2:
		k.retry(ctx, "FAILED")
	}
}

// retry moves the provider's clock to now, and retries the pushes of some states.
func (k *endingsLoad) retry(ctx context.Context, states ...string) {
	k.mu.Lock()
	now := time.Now()
	k.fake.Advance(now.Sub(k.at))
	k.at = now
	k.mu.Unlock()
	for _, state := range states {
		var page struct{ Data []struct{ ID string } }
		k.x.look(ctx, k.x.w.operator, "/api/v1/pushes?limit=200&state="+state, &page)
		for _, p := range page.Data {
			k.x.operate(ctx, "pushes retried", "/api/v1/pushes/"+p.ID+"/retry", object{}, nil)
		}
	}
}

// receive is the endpoint of every webhook. It verifies each request. While there are faults it refuses a sixth of them, and a sixth after
// it has the event.
func (k *endingsLoad) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the instance was killed
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	tenant, id := strings.TrimPrefix(r.URL.Path, "/"), r.Header.Get("webhook-id")
	k.calls++
	if fault := k.calls % 6; k.secrets[tenant] == nil || !k.calm.Load() && fault == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	} else if !k.calm.Load() && fault == 3 {
		w.WriteHeader(http.StatusInternalServerError)
	}
	mac := hmac.New(sha256.New, k.secrets[tenant])
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, r.Header.Get("webhook-timestamp"), body)
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); r.Header.Get("webhook-signature") != want {
		k.x.t.Errorf("the event %s for %s is signed %q, want %q", id, tenant, r.Header.Get("webhook-signature"), want)
	}
	var sent struct{ ID, TenantID string }
	if err := json.Unmarshal(body, &sent); err != nil || sent.ID != id || sent.TenantID != tenant {
		k.x.t.Errorf("the endpoint of %s got the event %s: %v %s", tenant, id, err, body)
	}
	if was := k.bodies[tenant+id]; was != "" && was != string(body) {
		k.x.t.Errorf("the event %s was sent as %s and as %s", id, was, body)
	}
	k.bodies[tenant+id] = string(body)
}

// settle waits until the tenant is archived, all pushes are delivered and all deliveries of webhooks have ended, and compares the
// provider's sums and the received events with them. meterplex verify proves which pushes and deliveries there are.
func (k *endingsLoad) settle(ctx context.Context) {
	x, w := k.x, k.x.w
	k.calm.Store(true)
	x.abandonRebuilds(ctx)
	var o struct {
		State, Step, ManifestHash string
		Manifest                  json.RawMessage
	}
	within(x.t, "the tenant is archived, and pushes and deliveries end", func(context.Context) (bool, string) {
		x.operate(ctx, workOffboarded, "/api/v1/tenants/"+k.ended.id+"/offboard", object{}, nil)
		x.look(ctx, w.operator, "/api/v1/tenants/"+k.ended.id+"/offboard", &o)
		k.retry(ctx, "FAILED", "UNKNOWN")
		open := w.count(`SELECT (SELECT count(*) FROM pushes WHERE state <> 'DELIVERED')
 + (SELECT count(*) FROM sagas WHERE kind = 'billing_push' AND step = 'plan' AND ended_at IS NULL)`)
		w.run(`UPDATE webhook_deliveries SET next_at = now() WHERE state = 'PENDING' AND next_at > now()`,
			`UPDATE webhooks SET next_at = now() WHERE next_at > now() AND lease IS NULL`) // as the clock does
		waiting := w.count(`SELECT (SELECT count(*) FROM webhook_deliveries WHERE state = 'PENDING') + (SELECT count(*) FROM webhooks w
 JOIN log_heads h USING (partition)
 WHERE w.status = 'ENABLED' AND w.cursor < greatest(h.topic_positions[7], h.topic_positions[8]))`)
		x.sleep(time.Second)
		return o.State == "ARCHIVED" && open+waiting == 0, fmt.Sprintf("%s after %s, %d pushes and %d deliveries are open", o.State, o.Step,
			open,
			waiting)
	})
	if hash := fmt.Sprintf("%x", sha256.Sum256(o.Manifest)); hash != o.ManifestHash || len(o.Manifest) == 0 {
		x.t.Errorf("the manifest has the SHA-256 %s, its hash is %s: %s", hash, o.ManifestHash, o.Manifest)
	}
	if status, body := x.attempt(ctx, k.ended.key, http.MethodGet, "/api/v1/usage/aggregates", nil,
		nil); status != http.StatusUnauthorized {
		x.t.Errorf("the key of an archived tenant was answered with %d %s", status, body)
	}
	for _, tenant := range k.billed {
		k.compareSums(tenant)
	}
	k.compareReceived()
}

// compareSums compares the sums that the provider counts with the delivered pushes.
func (k *endingsLoad) compareSums(tenant *tenant) {
	found, err := k.x.w.sql.Query(k.x.t.Context(), `SELECT event, sum(amount)::text FROM pushes WHERE tenant_id = $1 GROUP BY event`,
		tenant.id)
	must.OK(k.x.t, err)
	var event, sum string
	_, err = pgx.ForEachRow(found, []any{&event, &sum}, func() error {
		if counts := k.fake.Sum(customerOf(tenant), event).String(); counts != sum {
			k.x.t.Errorf("the provider counts %s of %s of %s, delivered are %s", counts, event, tenant.id, sum)
		}
		return nil
	})
	must.OK(k.x.t, err)
}

// compareReceived checks that the endpoints got each delivered event, and no other.
func (k *endingsLoad) compareReceived() {
	found, err := k.x.w.sql.Query(k.x.t.Context(),
		`SELECT w.tenant_id || d.event_id::text, d.state FROM webhook_deliveries d JOIN webhooks w ON w.id = d.webhook_id`)
	must.OK(k.x.t, err)
	k.mu.Lock()
	defer k.mu.Unlock()
	var event, state string
	_, err = pgx.ForEachRow(found, []any{&event, &state}, func() error {
		if state == "DELIVERED" && k.bodies[event] == "" {
			k.x.t.Errorf("the event %s is delivered, and no endpoint got it", event)
		}
		delete(k.bodies, event)
		return nil
	})
	must.OK(k.x.t, err)
	for event := range k.bodies {
		k.x.t.Errorf("an endpoint got %s, which its webhook does not select", event)
	}
}
