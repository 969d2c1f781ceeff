package entitlements

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Reservations of QUOTA features hold amounts until they end; those of METERED features have no account, and hold none.
func TestP7_ReservationsOfMeteredFeaturesHoldNothing(t *testing.T) {
	for kind, held := range map[string][]string{domain.FeatureQuota: {"5", "0"}, domain.FeatureMetered: {"0", "0"}} {
		for _, end := range []events.Subject{events.ReservationReleased, events.ReservationExpired} {
			f := State{used: map[usedKey]*sums{}}
			payload, err := json.Marshal(events.Reservation{ReservationID: "r", Feature: "f", PeriodKey: domain.PeriodLifetime, FeatureType: kind, Amount: 5})
			if err != nil {
				t.Fatal(err)
			}
			for i, subject := range []events.Subject{events.ReservationHeld, end} {
				if err := FoldV3(&f, &events.Envelope{Subject: subject, TenantID: uuid.Max, Payload: payload}); err != nil {
					t.Fatal(err)
				}
				if got := f.sums(usedKey{uuid.Max, "f", domain.PeriodLifetime}).held.String(); got != held[i] {
					t.Errorf("%s: %s are held after event %d of a reservation, want %s", kind, got, i, held[i])
				}
			}
		}
	}
}
