package store

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	sending "github.com/meterplex/meterplex/infra/webhook"
	"github.com/meterplex/meterplex/internal/must"
)

// hanging is an endpoint that does not answer until end.
func (f *hookFixture) hanging() (r *receiver, end func()) {
	stop := make(chan struct{})
	end = sync.OnceFunc(func() { close(stop) })
	f.Cleanup(end)
	return newReceiver(f.T, func(_ int, r *http.Request) int {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
		return 200
	}), end
}

// TestASlowRequestHoldsNoSlotOfAnother has one slot: an endpoint that does not answer gets it first. All others are sent beside it, each
// in its order, while it still has one request.
func TestASlowRequestHoldsNoSlotOfAnother(t *testing.T) {
	f := newHookFixture(t)
	slow, end := f.hanging()
	good := newReceiver(t, always(200))
	first, tenants, want := f.tenant(), []uuid.UUID{f.tenant(), f.tenant(), f.tenant()}, map[uuid.UUID][]uuid.UUID{}
	hung := f.create(first, slow.URL)
	for _, tenant := range tenants {
		f.create(tenant, good.URL)
	}
	d := f.deliverer(f.store)
	sender := sending.NewSender(sending.Config{Addresses: hookAddresses(), Timeout: time.Minute}) // a request that held its slot would end
	f.Cleanup(sender.Close)
	d.Slots, d.Slow, d.Sender = 1, 10*time.Millisecond, sender
	f.run(d)
	f.crossed(first, 2)
	f.until("the slow one is asked", func() bool { return len(slow.all()) == 1 })
	for _, tenant := range tenants {
		want[tenant] = f.crossed(tenant, 5)
	}
	f.until("all good ones got it", func() bool { return len(good.all()) >= 15 })
	got := good.ids()
	for tenant, ids := range want {
		last := -1
		for _, id := range ids {
			at := slices.Index(got, id.String())
			if at < last {
				t.Errorf("the events of %s were sent in another order", tenant)
			}
			last = at
		}
	}
	if n, ended := len(slow.all()), f.count(`SELECT count(*) FROM webhook_attempts a JOIN webhook_deliveries d ON d.id = a.delivery_id
		WHERE d.webhook_id = $1`, hung.ID); n != 1 || ended != 0 {
		t.Errorf("the others waited: %d requests to the slow endpoint, %d of them ended", n, ended)
	}
	end()
	f.until("the slow one got both", f.noneLeft)
	if ids := slow.ids(); len(ids) != 2 || ids[0] == ids[1] {
		t.Errorf("%q", ids)
	}
}

// TestTwoInstancesSendEachDeliveryOnce runs two deliverers on one database.
func TestTwoInstancesSendEachDeliveryOnce(t *testing.T) {
	f := newHookFixture(t)
	other, _, _ := openStoreAt(t, f.url)
	var most, now atomic.Int64
	r := newReceiver(t, func(int, *http.Request) int {
		most.Store(max(most.Load(), now.Add(1)))
		time.Sleep(2 * time.Millisecond)
		now.Add(-1)
		return 200
	})
	tenant := f.tenant()
	w := f.create(tenant, r.URL)
	f.run(f.deliverer(f.store), f.deliverer(other))
	var want []string
	for range 5 {
		for _, id := range f.crossed(tenant, 10) {
			want = append(want, id.String())
		}
	}
	f.until("50 deliveries", func() bool { return len(f.states(w.ID)) == 50 && f.noneLeft() })
	if got := r.ids(); !slices.Equal(got, want) {
		t.Errorf("%d requests for %d events, or another order", len(got), len(want))
	}
	if most.Load() != 1 {
		t.Errorf("%d requests to one endpoint at the same time", most.Load())
	}
}

// lossy is a queue whose answers are lost after their transactions took effect.
type lossy struct {
	webhooks.Queue
	mu   sync.Mutex
	lose map[string]int // answers to lose, by method
}

var errLost = errors.New("the answer was lost")

func (q *lossy) lost(method string, err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lose[method] > 0 {
		q.lose[method]--
		return errLost
	}
	return err
}

func (q *lossy) FeedWebhooks(ctx context.Context) error {
	return q.lost("feed", q.Queue.FeedWebhooks(ctx))
}

func (q *lossy) LeaseWebhooks(ctx context.Context, failing bool, limit int, lease uuid.UUID, until time.Duration) ([]webhooks.LeasedWebhook,
	error) {
	list, err := q.Queue.LeaseWebhooks(ctx, failing, limit, lease, until)
	if len(list) > 0 {
		err = q.lost("lease", err)
	}
	return list, err
}

func (q *lossy) NextDelivery(ctx context.Context, webhook, lease uuid.UUID, until time.Duration) (*webhook.Due, error) {
	d, err := q.Queue.NextDelivery(ctx, webhook, lease, until)
	return d, q.lost("next", err)
}

func (q *lossy) SettleDelivery(ctx context.Context, webhook, lease, delivery uuid.UUID,
	settle func(*webhook.Webhook, *webhook.Delivery, time.Time) (webhook.Attempt, bool)) (bool, error) {
	held, err := q.Queue.SettleDelivery(ctx, webhook, lease, delivery, settle)
	return held, q.lost("settle", err)
}

// TestLostAnswersLoseNoDelivery loses the answer to each statement once: each event is delivered, and an attempt is counted once.
func TestLostAnswersLoseNoDelivery(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	r := newReceiver(t, always(200))
	w := f.create(tenant, r.URL)
	d := f.deliverer(f.store)
	d.Queue = &lossy{Queue: d.Queue, lose: map[string]int{"feed": 1, "lease": 1, "next": 1, "settle": 1}}
	d.Lease = 100 * time.Millisecond
	f.run(d)
	want := f.crossed(tenant, 4)
	f.until("4 deliveries", func() bool { return len(f.states(w.ID)) == 4 && f.noneLeft() })
	got := r.ids()
	for _, id := range want {
		if !slices.Contains(got, id.String()) {
			t.Errorf("%s was not sent", id)
		}
	}
	if n := f.count(`SELECT count(*) FROM webhook_attempts`); n != 4 || slices.Contains(f.states(w.ID), webhook.DeliveryFailed) {
		t.Errorf("%d attempts are counted for 4 deliveries, %q", n, f.states(w.ID))
	}
}

func TestARangeIsSentAgain(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	r := newReceiver(t, always(200))
	early := f.crossed(tenant, 1)[0].String()
	w := f.create(tenant, r.URL)
	from := time.Now().Add(-time.Hour)
	late := f.crossed(tenant, 2)
	f.run(f.deliverer(f.store))
	f.until("2 deliveries", func() bool { return len(f.states(w.ID)) == 2 && f.noneLeft() })
	if _, err := f.webhooks.ReplayRange(t.Context(), commands.Request{}, tenant, w.ID, from, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	f.until("3 deliveries again", func() bool { return len(f.states(w.ID)) == 3 && f.noneLeft() && !f.replaying(tenant, w.ID) })
	count := map[string]int{}
	for _, id := range r.ids() {
		count[id]++
	}
	if count[early] != 1 || count[late[0].String()] != 2 || count[late[1].String()] != 2 {
		t.Errorf("%v", count)
	}
	// A range begins at a time: the event before it is not sent again.
	last := f.crossed(tenant, 1)[0].String()
	f.until("the next delivery", func() bool { return len(f.states(w.ID)) == 4 && f.noneLeft() })
	must.OK(f, f.pool.QueryRow(t.Context(), `SELECT recorded_at FROM event_log_rows WHERE event_id = $1`, last).Scan(&from))
	_, err := f.webhooks.ReplayRange(t.Context(), commands.Request{}, tenant, w.ID, from, from.Add(time.Hour))
	must.OK(f, err)
	f.until("it is sent again", func() bool {
		return len(r.ids()) == 7 && f.noneLeft() && !f.replaying(tenant, w.ID) || len(r.ids()) > 7
	})
	if ids := r.ids(); len(ids) != 7 || ids[5] != last || ids[6] != last {
		t.Errorf("%q, the last is %s", ids, last)
	}
}

func (f *hookFixture) replaying(tenant, id uuid.UUID) bool {
	return f.read(tenant, id).Replaying
}

func TestSecretsEndAfterTheOverlap(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	w := f.create(tenant, "https://example.com")
	for n := 2; n <= webhook.MaxWebhookSecrets; n++ {
		rotated, err := f.webhooks.Rotate(t.Context(), commands.Request{}, tenant, w.ID, time.Hour)
		if err != nil || rotated.Secrets != n {
			t.Fatalf("%+v, %v", rotated, err)
		}
	}
	var refusal *domain.Error
	if _, err := f.webhooks.Rotate(t.Context(), commands.Request{}, tenant, w.ID, time.Hour); !errors.As(err, &refusal) ||
		refusal.Code != "webhook_secrets_limit" {
		t.Errorf("%v", err)
	}
	must.Exec(f, f.pool, `UPDATE webhook_secrets SET expires_at = now() WHERE expires_at IS NOT NULL`)
	if got := f.read(tenant, w.ID); got.Secrets != 1 {
		t.Errorf("%d secrets are valid", got.Secrets)
	}
	for _, again := range []bool{false, true} { // the stored answer has no secret
		rotated, err := f.webhooks.Rotate(t.Context(), commands.Request{Idempotency: commands.Idempotency{Key: "k"}}, tenant, w.ID, 0)
		if err != nil || rotated.Secrets != 1 || rotated.Repeated != again || (rotated.Secret == "") != again {
			t.Errorf("%+v, %v", rotated, err)
		}
	}
	must.OK(f, f.webhooks.Remove(t.Context(), commands.Request{}, tenant, w.ID))
	if n := f.count(`SELECT count(*) FROM webhook_secrets`); n != 0 {
		t.Errorf("%d secrets of a removed webhook", n)
	}
	f.lastChange(w.ID, events.WebhookRemoved, "", "")
}

func TestWebhooksOfATenantAreBounded(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	for range webhook.MaxWebhooks {
		f.create(tenant, "https://example.com")
	}
	var refusal *domain.Error
	if _, err := f.webhooks.Create(t.Context(), commands.Request{}, tenant, "https://example.com",
		[]string{webhook.PushFailed}); !errors.As(err, &refusal) || refusal.Code != "webhooks_limit" {
		t.Errorf("%v", err)
	}
}

// TestPendingAdjustmentsReachAWebhook has a proposal that is pending and one that was void from its start.
func TestPendingAdjustmentsReachAWebhook(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	r := newReceiver(t, always(200))
	w := f.create(tenant, r.URL, webhook.AdjustmentPending)
	ids := f.crossed(tenant, 3) // stand for events that adjust: only the table decides
	f.adjusts(ids[0], "PENDING", 0)
	f.adjusts(ids[1], "VOID", -1)
	f.adjusts(ids[2], "APPROVED", 1)
	f.run(f.deliverer(f.store))
	f.until("2 deliveries", func() bool { return len(f.states(w.ID)) == 2 && f.noneLeft() })
	if got := r.ids(); !slices.Equal(got, []string{ids[0].String(), ids[2].String()}) {
		t.Errorf("%q", got)
	}
}

func TestEndedDeliveriesAreDeletedAfterTheirTime(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	r := newReceiver(t, always(200))
	w := f.create(tenant, r.URL)
	f.crossed(tenant, 3)
	f.run(f.deliverer(f.store))
	f.until("3 deliveries", func() bool { return len(f.states(w.ID)) == 3 && f.noneLeft() })
	_, err := f.pool.Exec(t.Context(), `UPDATE webhook_deliveries SET ended_at = now() - interval '91 days' WHERE id IN (SELECT id
		FROM webhook_deliveries ORDER BY id LIMIT 2)`)
	must.OK(f, err)
	retention := &Retention{Pool: f.pool, Answers: 24 * time.Hour, Ended: 24 * time.Hour, Reservations: 24 * time.Hour,
		Logger: slog.New(slog.DiscardHandler), Batch: 1}
	must.OK(f, retention.Look(t.Context()))
	if n, attempts := f.count(`SELECT count(*) FROM webhook_deliveries`), f.count(`SELECT count(*) FROM webhook_attempts`); n != 1 ||
		attempts != 1 {
		t.Errorf("%d deliveries and %d attempts are left instead of 1", n, attempts)
	}
}
