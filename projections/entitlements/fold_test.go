package entitlements

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// Reservations of QUOTA features hold amounts until they end; those of METERED features have no account, and hold none.
func TestP7_ReservationsOfMeteredFeaturesHoldNothing(t *testing.T) {
	for kind, held := range map[string][]string{domain.FeatureQuota: {"5", "0"}, domain.FeatureMetered: {"0", "0"}} {
		for _, end := range []events.Subject{events.ReservationReleased, events.ReservationExpired} {
			f := State{used: map[usedKey]*sums{}}
			payload, err := json.Marshal(events.Reservation{ReservationID: "r", Feature: "f", PeriodKey: domain.PeriodLifetime,
				FeatureType: kind, Amount: 5})
			must.OK(t, err)
			for i, subject := range []events.Subject{events.ReservationHeld, end} {
				must.OK(t, FoldV1(&f, &events.Envelope{Subject: subject, TenantID: uuid.Max, Payload: payload}))
				if got := f.sums(usedKey{uuid.Max, "f", domain.PeriodLifetime}).held.String(); got != held[i] {
					t.Errorf("%s: %s are held after event %d of a reservation, want %s", kind, got, i, held[i])
				}
			}
		}
	}
}

// Each change of the used amount of a METERED feature is a step that can cross a threshold: the steps add up to the sum that the batch
// adds. Those of QUOTA features cross by their accounts.
func TestEachChangeOfAMeteredFeatureIsAStep(t *testing.T) {
	for kind, want := range map[string][]int64{domain.FeatureMetered: {7, 2, -3}, domain.FeatureQuota: nil} {
		letter := uuid.UUID{1}
		f := State{used: map[usedKey]*sums{},
			parked: map[uuid.UUID]parkedVerdict{letter: {featureType: kind, feature: "f", periodKey: "2026-05", amount: 3}}}
		admission := events.Admission{By: events.ByConsume, FeatureType: kind, PeriodKey: "2026-05"}
		verdict := events.Validated{RawPosition: 1, EventID: "e", Feature: "f", FeatureType: kind, PeriodKey: "2026-05", Amount: 2,
			Count: 1}
		again := verdict
		again.Admitted, again.Amount = true, 7
		for _, e := range []struct {
			subject events.Subject
			payload any
		}{
			{events.UsageAdmitted, events.Admitted{Usage: events.Usage{EventID: "a", Feature: "f", Amount: 7, Type: "usage"}, Admitted: admission}},
			{events.UsageValidated, again}, {events.UsageValidated, verdict},
			{events.DeadLetterClosed, events.Closed{DeadLetterID: letter, Status: events.StatusDiscarded}},
		} {
			payload, err := json.Marshal(e.payload)
			must.OK(t, err)
			must.OK(t, FoldV1(&f, &events.Envelope{Subject: e.subject, TenantID: uuid.Max, Payload: payload}))
		}
		key := usedKey{uuid.Max, "f", "2026-05"}
		var steps []int64
		for _, s := range f.metered[key] {
			steps = append(steps, s.amount)
		}
		if got := f.sums(key).used.String(); got != "6" || !slices.Equal(steps, want) {
			t.Errorf("%s: the sum %s has the steps %v, want 6 and %v", kind, got, steps, want)
		}
	}
}
