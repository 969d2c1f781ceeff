package store

import (
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// wait adds tests of a webhook that wait.
func (f *hookFixture) wait(w webhooks.CreatedWebhook, n int) {
	f.Helper()
	must.Exec(f, f.pool, `INSERT INTO webhook_deliveries (id, webhook_id, tenant_id, event_id, type, state, next_at, created_at)
 SELECT gen_random_uuid(), $1, $2, gen_random_uuid(), 'webhook.test', 'PENDING', now(), now() FROM generate_series(1, $3)`, w.ID,
		w.TenantID, n)
}

func (f *hookFixture) inState(webhook uuid.UUID, state string) int {
	f.Helper()
	return f.count(`SELECT count(*) FROM webhook_deliveries WHERE webhook_id = $1 AND state = $2`, webhook, state)
}

func (f *hookFixture) setStatus(w webhooks.CreatedWebhook, status string) {
	f.Helper()
	_, err := f.webhooks.Change(f.Context(), commands.Request{}, w.TenantID, w.ID, webhooks.ChangeWebhook{Status: &status})
	must.OK(f, err)
}

// A change of a webhook holds the head of its partition, for which the events of all tenants of it wait.
func TestP9_TheEndOfAWebhookHoldsTheHeadForABoundedNumberOfDeliveries(t *testing.T) {
	const waiting = 1200
	for name, end := range map[string]func(f *hookFixture, w webhooks.CreatedWebhook){
		"disabled": func(f *hookFixture, w webhooks.CreatedWebhook) { f.setStatus(w, events.WebhookDisabled) },
		"removed": func(f *hookFixture, w webhooks.CreatedWebhook) {
			must.OK(f, f.webhooks.Remove(f.Context(), commands.Request{}, w.TenantID, w.ID))
		},
		"disabled by its endpoint": func(f *hookFixture, w webhooks.CreatedWebhook) {
			d := f.deliverer(f.store)
			d.EndEvery = time.Hour // the look at the start finds nothing
			stop := f.run(d)
			f.until("disabled", func() bool { return f.read(w.TenantID, w.ID).Status == events.WebhookDisabled })
			stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newHookFixture(t)
			w := f.create(f.tenant(), newReceiver(t, always(410)).URL)
			f.wait(w, waiting)
			_, err := f.pool.Exec(t.Context(), `UPDATE webhooks SET next_at = now(), replay_until = replay_after + 1000000000`)
			must.OK(f, err)
			end(f, w)
			if n := f.count(`SELECT count(*) FROM webhooks WHERE status = 'DISABLED' AND replay_after < replay_until`); n != 0 {
				t.Error("it replays its range if it is enabled again")
			}
			// The delivery whose answer disables the webhook ends by itself.
			if n := f.inState(w.ID, webhook.DeliveryFailed); n < failedInChange || n > failedInChange+1 {
				t.Errorf("the change let %d deliveries fail", n)
			}
			must.OK(f, (&Webhooks{Store: f.store, NewID: newID}).EndDeliveries(t.Context()))
			if n := f.inState(w.ID, webhook.DeliveryFailed); n != waiting || !f.noneLeft() {
				t.Errorf("%d of %d deliveries failed at last", n, waiting)
			}
		})
	}
}

// TestTheNotifierEndsTheDeliveriesOfAWebhookThatIsNotEnabled runs a deliverer for which no delivery is due, while another session holds
// the head of the partition.
func TestTheNotifierEndsTheDeliveriesOfAWebhookThatIsNotEnabled(t *testing.T) {
	f := newHookFixture(t)
	w := f.create(f.tenant(), newReceiver(t, always(200)).URL)
	other := f.create(w.TenantID, newReceiver(t, always(200)).URL)
	f.wait(w, 600)
	f.wait(other, 600)
	f.setStatus(w, events.WebhookDisabled)
	let := holdHead(t, f.pool, events.PartitionOf(w.TenantID))
	defer let()
	f.run(f.deliverer(f.store))
	f.until("all have failed", func() bool { return f.inState(w.ID, webhook.DeliveryFailed) == 600 })
	if n := f.inState(other.ID, webhook.DeliveryFailed); n != 0 {
		t.Errorf("%d deliveries of an enabled webhook failed", n)
	}
}

// Deliveries that still wait when their webhook is enabled again are sent, without another event that wakes the queue.
func TestDeliveriesThatWaitAtAnEnableAreSent(t *testing.T) {
	f := newHookFixture(t)
	r := newReceiver(t, func(int, *http.Request) int { return 204 })
	w := f.create(f.tenant(), r.URL)
	f.wait(w, failedInChange+20)
	f.setStatus(w, events.WebhookDisabled)
	f.setStatus(w, events.WebhookEnabled)
	must.OK(f, (&Webhooks{Store: f.store, NewID: newID}).EndDeliveries(t.Context()))
	if n := f.inState(w.ID, webhook.DeliveryPending); n != 20 {
		t.Fatalf("%d deliveries wait", n)
	}
	f.run(f.deliverer(f.store))
	f.until("all are sent", func() bool { return f.inState(w.ID, webhook.DeliveryDelivered) == 20 })
	if n := len(r.all()); n != 20 {
		t.Errorf("%d requests", n)
	}
}

func TestTestsOfAWebhookThatWaitAreBounded(t *testing.T) {
	f := newHookFixture(t)
	w := f.create(f.tenant(), "https://example.com")
	f.wait(w, webhook.MaxWebhookTests-1)
	if _, err := f.webhooks.Test(t.Context(), commands.Request{}, w.TenantID, w.ID); err != nil {
		t.Fatal(err)
	}
	var refusal *domain.Error
	if _, err := f.webhooks.Test(t.Context(), commands.Request{}, w.TenantID, w.ID); !errors.As(err, &refusal) ||
		refusal.Code != "webhook_tests_limit" {
		t.Errorf("%v", err)
	}
	if n := f.inState(w.ID, webhook.DeliveryPending); n != webhook.MaxWebhookTests {
		t.Errorf("%d tests wait", n)
	}
	_, err := f.pool.Exec(
		t.Context(),
		`UPDATE webhook_deliveries SET state = 'DELIVERED', next_at = NULL, ended_at = now() WHERE id = (SELECT id FROM webhook_deliveries
			LIMIT 1)`,
	)
	must.OK(f, err)
	if _, err := f.webhooks.Test(t.Context(), commands.Request{}, w.TenantID, w.ID); err != nil {
		t.Errorf("after one was sent: %v", err)
	}
	if states := f.states(w.ID); len(states) != webhook.MaxWebhookTests+1 || slices.Contains(states, webhook.DeliveryFailed) {
		t.Errorf("%q", states)
	}
}

// A webhook whose endpoint answers 410 is disabled with a notice. That reason is of no later change: the events of these hold the
// operator's own. Events recorded while it is disabled are not sent.
func TestAChangeOfADisabledWebhookHasItsOwnReason(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	r := newReceiver(t, always(410))
	w := f.create(tenant, r.URL)
	f.crossed(tenant, 3)
	f.run(f.deliverer(f.store))
	f.until("disabled", func() bool { return f.read(tenant, w.ID).Status == events.WebhookDisabled })
	f.lastChange(w.ID, events.WebhookDisabled, "", webhook.Gone)
	if n := f.inState(w.ID, webhook.DeliveryFailed); n != 3 || len(r.all()) != 1 {
		t.Errorf("%d deliveries failed after %d requests", n, len(r.all()))
	}
	for url, reason := range map[string]string{"https://example.com/moved": "the receiver moved", "https://example.com/": ""} {
		_, err := f.webhooks.Change(t.Context(), commands.Request{Reason: reason}, tenant, w.ID, webhooks.ChangeWebhook{URL: &url})
		must.OK(f, err)
		f.lastChange(w.ID, events.WebhookDisabled, reason, webhook.Gone)
	}
	_, err := f.webhooks.Rotate(t.Context(), commands.Request{Reason: "leaked"}, tenant, w.ID, 0)
	must.OK(f, err)
	f.lastChange(w.ID, events.WebhookDisabled, "leaked", webhook.Gone)
	if w := f.read(tenant, w.ID); w.Reason == nil || *w.Reason != webhook.Gone {
		t.Errorf("the webhook is disabled: %+v", w)
	}
	f.crossed(tenant, 1)
	f.setStatus(w, events.WebhookEnabled)
	must.OK(f, (&Webhooks{Store: f.store, NewID: newID}).FeedWebhooks(t.Context()))
	if n := len(f.states(w.ID)); n != 3 {
		t.Errorf("%d deliveries: those recorded while it was disabled are not sent", n)
	}
}
