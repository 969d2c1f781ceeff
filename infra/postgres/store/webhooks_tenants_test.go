package store

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/must"
)

// neighbour returns another tenant of a tenant's partition.
func (f *hookFixture) neighbour(tenant uuid.UUID) uuid.UUID {
	f.Helper()
	for {
		if other := f.tenant(); events.PartitionOf(other) == events.PartitionOf(tenant) {
			return other
		}
	}
}

// adjusts lets an event be an adjustment, which was decided so much later if it is not pending.
func (f *hookFixture) adjusts(event uuid.UUID, state string, later int) {
	f.Helper()
	must.Exec(f, f.pool, `INSERT INTO adjustments (id, tenant_id, period_key, snapshot, feature, subscription_id, kind, amount, event_count,
		position, recorded, state, decided)
 SELECT l.event_id, l.tenant_id, '2026-05', 1, 'api_calls', l.tenant_id, 'REBUILD', 1, 0, l.position, l.position, $2,
 CASE WHEN $2 <> 'PENDING' THEN l.position + $3 END
 FROM event_log_rows l WHERE l.event_id = $1`, event, state, later)
}

func TestP9_AWebhookGetsNoEventOfANeighbour(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	other := f.neighbour(tenant)
	crossings, adjustments := f.create(tenant, "https://example.com/1"),
		f.create(tenant, "https://example.com/2", webhook.AdjustmentPending)
	theirs, ours := f.crossed(other, 1)[0], f.crossed(tenant, 1)[0]
	f.adjusts(theirs, "PENDING", 0)
	f.adjusts(ours, "PENDING", 0)
	must.OK(f, (&Webhooks{Store: f.store, NewID: newID}).FeedWebhooks(t.Context()))
	for _, w := range []uuid.UUID{crossings.ID, adjustments.ID} {
		list, err := (&Catalogue{Pool: f.pool}).Deliveries(t.Context(),
			webhooks.DeliveryQuery{WebhookID: w, Page: commands.Page{Limit: 10}})
		must.OK(f, err)
		if len(list) != 1 || list[0].EventID != ours {
			t.Errorf("%+v, want one of %s", list, ours)
		}
	}
}

// The adjustments of usage are on the topics of usage, which move no cursor: the table of adjustments does.
func TestAnAdjustmentOfUsageIsFedAtOnce(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	w := f.create(tenant, "https://example.com", webhook.AdjustmentPending)
	queue := &Webhooks{Store: f.store, NewID: newID}
	for _, waits := range []bool{false, true} { // a verdict that is no adjustment, and one that is
		_, err := f.pool.Exec(t.Context(), `UPDATE log_heads SET position = position + 1 WHERE partition = $1`, events.PartitionOf(tenant))
		must.OK(f, err)
		if waits {
			must.Exec(f, f.pool, `INSERT INTO adjustments (id, tenant_id, period_key, snapshot, feature, subscription_id, kind, amount,
				event_count, position, recorded, state)
 SELECT gen_random_uuid(), $1, '2026-05', 1, 'api_calls', $1, 'LATE_USAGE', 1, 1, position, position, 'PENDING' FROM log_heads
 WHERE partition = $2`, tenant, events.PartitionOf(tenant))
		}
		if _, fed, _, err := queue.LookForWebhooks(t.Context()); err != nil || fed != waits {
			t.Errorf("an adjustment waits: %v, the queue is fed: %v, %v", waits, fed, err)
		}
	}
	must.OK(f, queue.FeedWebhooks(t.Context()))
	if states := f.states(w.ID); !slices.Equal(states, []string{"PENDING"}) {
		t.Errorf("%q", states)
	}
}

func TestASecretSignsUntilItsOverlapEnds(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	r := newReceiver(t, always(200))
	w := f.create(tenant, r.URL)
	for _, overlap := range []time.Duration{time.Hour, 6 * time.Hour} {
		_, err := f.webhooks.Rotate(t.Context(), commands.Request{}, tenant, w.ID, overlap)
		must.OK(f, err)
	}
	if n := f.count(`SELECT count(*) FROM webhook_secrets WHERE expires_at <= now() + interval '1 hour'`); n != 1 {
		t.Errorf("%d secrets end in an hour: a later rotation lengthens no overlap", n)
	}
	f.run(f.deliverer(f.store))
	for n, ended := range []string{`false`, `expires_at <= now() + interval '1 hour'`, `expires_at IS NOT NULL`} {
		_, err := f.pool.Exec(t.Context(), `UPDATE webhook_secrets SET expires_at = now() WHERE `+ended)
		must.OK(f, err)
		f.crossed(tenant, 1)
		f.until("delivered", func() bool { return len(r.all()) == n+1 && f.noneLeft() })
		if got := strings.Count(r.all()[n].signature, "v1,"); got != 3-n {
			t.Errorf("%d signatures instead of %d", got, 3-n)
		}
	}
}

// An instance whose lease has ended changes nothing: another one sends the deliveries.
func TestAnEndedLeaseHasNoEffect(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	w := f.create(tenant, "https://example.com")
	f.crossed(tenant, 1)
	queue, before, now := &Webhooks{Store: f.store, NewID: newID}, newID(), newID()
	must.OK(f, queue.FeedWebhooks(t.Context()))
	lease := func(id uuid.UUID) {
		if leased, err := queue.LeaseWebhooks(t.Context(), false, 1, id, time.Hour); err != nil || len(leased) != 1 {
			t.Fatal(leased, err)
		}
	}
	lease(before)
	due, err := queue.NextDelivery(t.Context(), w.ID, before, time.Hour)
	if must.OK(f, err); due == nil {
		t.Fatal("no delivery is due")
	}
	must.Exec(f, f.pool, `UPDATE webhooks SET next_at = now()`)
	lease(now)
	if due, err := queue.NextDelivery(t.Context(), w.ID, before, time.Hour); err != nil || due != nil {
		t.Errorf("an ended lease got a delivery: %+v, %v", due, err)
	}
	held, err := queue.SettleDelivery(t.Context(), w.ID, before, due.ID, func(w *webhook.Webhook, d *webhook.Delivery,
		now time.Time) (webhook.Attempt, bool) {
		a, _ := w.Settle(d, w.URL, webhook.Result{Status: 200}, nil, now)
		return a, true
	})
	if err != nil || held || !slices.Equal(f.states(w.ID), []string{"PENDING"}) {
		t.Errorf("an ended lease saved a result: %v, %v", held, err)
	}
	must.OK(f, queue.ReleaseWebhook(t.Context(), w.ID, before))
	f.crossed(tenant, 1)
	must.OK(f, queue.FeedWebhooks(t.Context()))
	if f.count(`SELECT count(*) FROM webhooks WHERE lease = $1 AND next_at > now() + interval '30 minutes'`, now) != 1 {
		t.Error("the webhook is due beside its lease")
	}
}

// expired appends the expiry of a reservation.
func (f *hookFixture) expired(tenant uuid.UUID, id string) {
	f.Helper()
	must.OK(f, f.store.Change(f.Context(), tenant, func(tx commands.Tx) error {
		body, err := codec.EncodePayload(events.ReservationExpired, events.Reservation{ReservationID: id, Feature: "api_calls",
			PeriodKey: "2026-05", SubscriptionID: newID(), FeatureType: domain.FeatureQuota, Amount: 1, ExpiresAt: time.Now()})
		must.OK(f, err)
		_, err = tx.Append(events.Pending{EventID: newID(), Subject: events.ReservationExpired, TenantID: tenant,
			DedupeKey: events.KeyEvent(newID()), Actor: events.Actor{Type: "service", ID: "test"},
			Residency: events.ResidencyUnspecified, OccurredAt: time.Now().UTC().Truncate(time.Microsecond), Payload: body})
		return err
	}))
}

// A type that is added to a webhook counts from the change on, although its events from before lie behind the cursor. Events of its other
// types that wait are delivered.
func TestATypeThatIsAddedDeliversNothingFromBefore(t *testing.T) {
	for _, waiting := range []int{0, 1} {
		f := newHookFixture(t)
		tenant := f.tenant()
		w := f.create(tenant, "https://example.com")
		queue := &Webhooks{Store: f.store, NewID: newID}
		must.OK(f, queue.FeedWebhooks(t.Context()))
		want := []string{webhook.ReservationExpired}
		if waiting == 0 {
			f.expired(tenant, "before")
		} else {
			f.crossed(tenant, waiting)
			want = append(want, webhook.ThresholdCrossed)
		}
		types := []string{webhook.ReservationExpired, webhook.ThresholdCrossed}
		_, err := f.webhooks.Change(t.Context(), commands.Request{}, tenant, w.ID, webhooks.ChangeWebhook{Events: &types})
		must.OK(f, err)
		f.expired(tenant, "after")
		must.OK(f, queue.FeedWebhooks(t.Context()))
		list, err := (&Catalogue{Pool: f.pool}).Deliveries(t.Context(),
			webhooks.DeliveryQuery{WebhookID: w.ID, Page: commands.Page{Limit: 10}})
		must.OK(f, err)
		var got []string
		for _, d := range list {
			got = append(got, d.Type)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("with %d waiting: %v, want %v", waiting, got, want)
		}
	}
}

func TestAGroupOfRefusedUsageIsSentAtMostOnceAMinute(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	r := newReceiver(t, always(204))
	w := f.create(tenant, r.URL, webhook.UsageRefused)
	refused := func(at string, features ...string) {
		now, err := time.Parse(time.RFC3339, at)
		must.OK(t, err)
		seen := &metering.UsageSeen{Store: f.store, Now: func() time.Time {
			return now
		}, NewID: newID, Logger: slog.New(slog.DiscardHandler)}
		for _, feature := range features {
			seen.Seen(&commands.Caller{TenantID: tenant},
				[]intake.BatchItem{{Sent: &intake.SentItem{Feature: feature, Payload: `{"user":"ann"}`}}},
				[]metering.EventVerdict{{EventID: "of-" + feature, Status: metering.StatusRejected, Code: "feature_not_found"}}, true)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		must.OK(t, seen.Run(ended))
	}
	queue := &Webhooks{Store: f.store, NewID: newID}
	for _, minute := range []string{"2026-05-01T12:00", "2026-05-01T12:01"} {
		refused(minute+":00Z", "a", "a")
		refused(minute+":01Z", "a", "b") // by another instance, or a second later
		must.OK(t, queue.FeedWebhooks(t.Context()))
		refused(minute+":59Z", "b")
		must.OK(t, queue.FeedWebhooks(t.Context()))
	}
	f.run(f.deliverer(f.store))
	f.until("all are sent", func() bool { return len(f.states(w.ID)) == 4 && f.noneLeft() })
	counts := map[string]int64{}
	for _, got := range r.all() {
		var body struct {
			Type, Subject string
			Data          webhook.RefusalNotice
		}
		must.OK(t, json.Unmarshal(got.body, &body))
		counts[body.Data.Feature] += body.Data.Count
		if body.Type != "usage.refused" || body.Subject != "meterplex.usage.event.refusals_seen.v1" ||
			len(body.Data.Samples) != int(body.Data.Count) ||
			body.Data.Samples[0].EventID != "of-"+body.Data.Feature || body.Data.Samples[0].Payload != "" {
			t.Errorf("%s", got.body)
		}
	}
	if len(r.all()) != 4 || counts["a"] != 4 || counts["b"] != 2 {
		t.Errorf("%d requests count %v", len(r.all()), counts)
	}
}
