package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/stripe/stripetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// newBilledClosesTest is newClosesTest for tenants that have a customer of a Stripe each, and a webhook.
func newBilledClosesTest(t testing.TB, tenants int) (*closesTest, []*tenant) {
	const secret = "sk_test_killed"
	// Its clock does not move: times of the test are in its past.
	stripe := stripetest.New(secret, time.Now().UTC().Add(12*time.Hour))
	t.Cleanup(stripe.Close)
	stripe.AddMeter(stripetest.Meter{Event: "api_calls"})
	var d *closesTest
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		d.mu.Lock()
		defer d.mu.Unlock()
		id := r.Header.Get("webhook-id")
		d.received[id] = append(d.received[id], string(body))
	}))
	t.Cleanup(receiver.Close)
	d = newClosesTest(t, "api,sagas,biller,notifier", "METERPLEX_STRIPE_KEY="+secret, "METERPLEX_STRIPE_URL="+stripe.URL, "METERPLEX_WEBHOOK_ALLOW=127.0.0.0/8")
	d.stripe, d.customers, d.received = stripe, map[*tenant]string{}, map[string][]string{}
	list := d.createTenants(d.rest, tenants)
	for n, x := range list {
		d.customers[x], d.paths[x] = fmt.Sprint("cus_", n), "/api/v1/tenants/"+x.id+"/periods/"+d.month
		d.stripe.AddCustomer(d.customers[x])
		d.ask(d.operator, http.MethodPut, d.rest, "/api/v1/tenants/"+x.id+"/billing", object{"provider": "stripe", "customer": d.customers[x]}, nil, http.StatusOK)
		at := d.running().instance // only its addresses allow the receiver
		d.ask(d.operator, http.MethodPost, at, "/api/v1/tenants/"+x.id+"/webhooks", object{"url": receiver.URL, "events": []string{"period.closed"}}, nil, http.StatusCreated)
		d.ingest(d.rest, x, "accepted", events(fmt.Sprint("in-time", n), 3, "api_calls")...) // 1, 2 and 3
	}
	d.drain()
	return d, list
}

// settled waits until the pushes and the deliveries of a tenant are delivered, or ended with their webhook.
func (d *closesTest) settled(x *tenant) {
	d.t.Helper()
	within(d.t, "all is sent", func(context.Context) (bool, string) {
		pushes, waiting := d.count(`SELECT count(*) FROM pushes WHERE tenant_id = $1 AND state = 'DELIVERED'`, x.id), d.count(`SELECT count(*) FROM webhook_deliveries WHERE tenant_id = $1 AND state = 'PENDING'`, x.id)
		sagas := d.count(`SELECT count(*) FROM sagas WHERE tenant_id = $1 AND ended_at IS NULL`, x.id)
		return pushes == 1 && waiting == 0 && sagas == 0, fmt.Sprintf("%d pushes are delivered, %d deliveries and %d sagas wait", pushes, waiting, sagas)
	})
}

// checkCounted checks that Stripe's sum is what was delivered and what is billable, and that each event reached the receiver under its own id with the same body.
func (d *closesTest) checkCounted(x *tenant) {
	d.t.Helper()
	var delivered, billable, closed string
	var recorded int
	if err := d.sql.QueryRow(d.t.Context(), `SELECT (SELECT sum(amount)::text FROM pushes WHERE tenant_id = $1 AND state = 'DELIVERED'), (SELECT sum(amount)::text FROM period_lines WHERE tenant_id = $1),
 (SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 76), (SELECT event_id::text FROM event_log_rows WHERE tenant_id = $1 AND subject = 72)`, x.id).Scan(&delivered, &billable, &recorded, &closed); err != nil {
		d.t.Fatal(err)
	}
	if sum := d.stripe.Sum(d.customers[x], "api_calls").String(); sum != "6" || delivered != sum || billable != sum || recorded != 1 {
		d.t.Errorf("%s: Stripe counts %s, %s is delivered in %d events, %s is billable", d.customers[x], sum, delivered, recorded, billable)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	bodies := d.received[closed]
	if len(bodies) == 0 || strings.Count(strings.Join(bodies, ""), bodies[0]) != len(bodies) {
		d.t.Errorf("%s: the close was sent as %q", d.customers[x], bodies)
	}
}

// P8: the process that sends pushes and webhooks is killed at each step: before and behind the COMMIT of a push, of its attempt and of its delivery, before and
// behind each request. Another one goes on. The provider counts each amount once, and a webhook gets each event, under the same id in each attempt.
func TestP8_KilledAtEachStepOfAPush(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	places := []string{
		"push: before it is stored", "push: stored", "push: its attempt is stored", "push: sent",
		"change 76: before the append", "change 76: before COMMIT", "change 76: after COMMIT", "saga billing_push, COMPLETED: its row is saved",
		"webhook: before it is sent", "webhook: sent", "webhook: recorded",
	}
	d, tenants := newBilledClosesTest(t, len(places))
	for n, place := range places {
		d.killAt(place, 1, d.closing(tenants[n]))
		d.closed(tenants[n])
		d.settled(tenants[n])
	}
	for _, x := range tenants {
		d.checkCounted(x)
	}
	d.mu.Lock()
	if len(d.received) != len(places) {
		t.Errorf("the receiver has %d ids, of %d events", len(d.received), len(places))
	}
	d.mu.Unlock()
	if got := int(d.deaths.Load()); got != len(places) {
		t.Errorf("%d deaths, want %d", got, len(places))
	}
	d.finish()
	d.verifyAtEnd()
}

// killAtEachStep kills the process that runs an offboarding at each of its events. A process that died before COMMIT lets the next one repeat the step.
func (d *closesTest) killAtEachStep(x *tenant, place string, again bool, steps int, cause func()) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	var clock sync.WaitGroup
	defer clock.Wait()
	defer cancel()
	clock.Go(func() {
		for ctx.Err() == nil {
			d.outdateKeys(ctx, x)
			select {
			case <-ctx.Done():
			case <-time.After(250 * time.Millisecond):
			}
		}
	})
	dies, pass := d.running(), 1
	if !dies.armAt(place, pass) {
		return
	}
	var caused sync.WaitGroup
	defer caused.Wait() // cause may need the process that goes on
	caused.Go(cause)
	if again {
		pass = 2
	}
	for n := range steps {
		if !dies.awaitDeath(place) {
			return
		}
		next := d.pair[(d.deaths.Load()+1)%2]
		if n+1 < steps && !next.armAt(place, pass) {
			return
		}
		d.goOn(dies)
		dies = next
	}
}

// P8: the process that offboards a tenant is killed at each step: before the append of the step's event, before and behind COMMIT. Another one goes on. The tenant is
// archived with a whole manifest, each step is recorded once, and what was due is pushed once.
func TestP8_KilledAtEachStepOfAnOffboarding(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	places := []string{"change 80: before the append", "change 80: before COMMIT", "change 80: after COMMIT"}
	d, tenants := newBilledClosesTest(t, len(places))
	const steps = 7 // the request, and six of the saga
	for n, place := range places {
		x := tenants[n]
		d.killAtEachStep(x, place, n < 2, steps, d.asking("/api/v1/tenants/"+x.id+"/offboard", object{"reason": "the contract ended"}))
		d.settled(x)
		d.checkCounted(x)
		var log, state string
		if err := d.sql.QueryRow(t.Context(), `SELECT (SELECT string_agg(payload(l)->>'step', ' ' ORDER BY position) FROM event_log_rows l WHERE tenant_id = $1 AND subject = 80),
 (SELECT concat_ws(' ', o.state, t.status, s.state, (SELECT string_agg(DISTINCT w.status, ',') FROM webhooks w WHERE w.tenant_id = $1),
   (SELECT count(*) FROM event_log_rows l WHERE tenant_id = $1 AND subject = 80 AND payload(l)->>'detail' = 'sha256 ' || encode(sha256(convert_to(o.manifest, 'UTF8')), 'hex')),
   json_array_length(o.manifest::json->'snapshots'), (SELECT count(*) FROM api_keys k WHERE k.tenant_id = $1 AND k.revoked_at IS NULL))
  FROM offboardings o JOIN tenants t ON t.id = o.tenant_id JOIN sagas s ON s.id = o.saga_id WHERE o.tenant_id = $1)`, x.id).Scan(&log, &state); err != nil {
			t.Fatal(err)
		}
		if want := "requested suspended drained closed pushed exported archived"; log != want {
			t.Errorf("%s: the log has the steps %q, want %q", place, log, want)
		}
		if want := "ARCHIVED ARCHIVED COMPLETED DISABLED 1 1 0"; state != want {
			t.Errorf("%s: offboarding, tenant, saga, webhooks, hashes of the manifest, snapshots, usable keys: %q, want %q", place, state, want)
		}
	}
	if got := int(d.deaths.Load()); got != len(places)*steps {
		t.Errorf("%d deaths, want %d", got, len(places)*steps)
	}
	d.finish()
	d.verifyAtEnd()
}
