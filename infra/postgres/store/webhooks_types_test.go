package store

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// expired appends the expiry of a reservation.
func (f *hookFixture) expired(tenant uuid.UUID, id string) {
	f.Helper()
	f.must(f.store.Change(f.Context(), tenant, func(tx commands.Tx) error {
		body, err := codec.EncodePayload(events.ReservationExpired, events.Reservation{ReservationID: id, Feature: "api_calls", PeriodKey: "2026-05", SubscriptionID: newTestID(), FeatureType: domain.FeatureQuota, Amount: 1, ExpiresAt: time.Now()})
		f.must(err)
		_, err = tx.Append(events.Pending{EventID: newTestID(), Subject: events.ReservationExpired, TenantID: tenant, DedupeKey: events.KeyEvent(newTestID()), Actor: events.Actor{Type: "service", ID: "test"},
			Residency: events.ResidencyUnspecified, OccurredAt: time.Now().UTC().Truncate(time.Microsecond), Payload: body})
		return err
	}))
}

// A type that is added to a webhook counts from the change on, although its events from before lie behind the cursor. Events of its other types that wait are delivered.
func TestATypeThatIsAddedDeliversNothingFromBefore(t *testing.T) {
	for _, waiting := range []int{0, 1} {
		f := newHookFixture(t)
		tenant := f.tenant()
		w := f.create(tenant, "https://example.com")
		queue := &Webhooks{Store: f.store, NewID: newTestID}
		f.must(queue.FeedWebhooks(t.Context()))
		want := []string{domain.WebhookReservationExpired}
		if waiting == 0 {
			f.expired(tenant, "before")
		} else {
			f.crossed(tenant, waiting)
			want = append(want, domain.WebhookThresholdCrossed)
		}
		types := []string{domain.WebhookReservationExpired, domain.WebhookThresholdCrossed}
		_, err := f.webhooks.Change(t.Context(), commands.Request{}, tenant, w.ID, commands.ChangeWebhook{Events: &types})
		f.must(err)
		f.expired(tenant, "after")
		f.must(queue.FeedWebhooks(t.Context()))
		list, err := (&Catalogue{Pool: f.pool}).Deliveries(t.Context(), commands.DeliveryQuery{WebhookID: w.ID, Page: commands.Page{Limit: 10}})
		f.must(err)
		var got []string
		for _, d := range list {
			got = append(got, d.Type)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("with %d waiting: %v, want %v", waiting, got, want)
		}
	}
}
