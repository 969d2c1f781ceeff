package entitlements

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// LikeAccounts lists the versions that count admitted usage when it is recorded, and held amounts.
func TestVersionsThatCountLikeAccounts(t *testing.T) {
	for version, fold := range map[string]Fold{V1: FoldV1, V2: FoldV2, V3: FoldV3} {
		state := State{granted: map[uuid.UUID]*grantedBy{}, used: map[usedKey]*sums{}}
		for _, e := range []events.Envelope{
			{Subject: events.ReservationHeld, Payload: []byte(`{"reservationId":"a","feature":"calls","periodKey":"2026-05","featureType":"QUOTA","amount":7}`)},
			{Subject: events.UsageAdmitted, Payload: []byte(`{"eventId":"b","feature":"calls","amount":2,"timestamp":"2026-05-04T12:00:00Z","type":"usage","admitted":{"by":"commit","featureType":"QUOTA","periodKey":"2026-05","heldAmount":3}}`)},
		} {
			if err := fold(&state, &e); err != nil {
				t.Fatalf("%s: %v", version, err)
			}
		}
		sum := state.used[usedKey{feature: "calls", periodKey: "2026-05"}]
		if counts := sum != nil && sum.used.Int64() == 2 && sum.held.Int64() == 4; counts != slices.Contains(LikeAccounts(), version) {
			t.Errorf("%s: %+v, like accounts: %v", version, sum, LikeAccounts())
		}
	}
}
