package entitlements

import (
	"encoding/json"
	"fmt"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// V3 is the version of the fold in this file.
const V3 = projections.ProjectionEntitlements + "/v3"

// LikeAccounts lists the versions of the fold that count like the accounts behind limits: their rows equal the accounts at the same
// position.
func LikeAccounts() []string { return []string{V3} }

// FoldV3 is the fold entitlement_reads/v3: FoldV2, and admitted usage counts when it is recorded, as its account does, and not again
// with its verdict. The discard of a dead letter leaves admitted usage as it is: it was granted. The amounts that reservations hold
// are summed, too.
func FoldV3(f *State, e *events.Envelope) error {
	switch e.Subject {
	case events.UsageAdmitted:
		admitted, err := codec.AdmittedOf(e.Payload)
		if err != nil {
			return err
		}
		f.count(e, admitted.Admitted.FeatureType, admitted.Feature, admitted.Admitted.PeriodKey, admitted.Amount)
		if admitted.Admitted.FeatureType == domain.FeatureQuota {
			f.Held(e.TenantID, admitted.Feature, admitted.Admitted.PeriodKey, -admitted.Admitted.HeldAmount)
		}
		return nil
	case events.ReservationHeld:
		return f.reserve(e, 1)
	case events.ReservationReleased, events.ReservationExpired:
		return f.reserve(e, -1)
	case events.UsageValidated:
		v, err := codec.VerdictOf(e)
		if err == nil && !v.Admitted {
			f.count(e, v.FeatureType, v.Feature, v.PeriodKey, v.Amount)
		}
		return err
	case events.DeadLetterClosed:
		return f.discard(e, func(v parkedVerdict) bool { return !v.admitted })
	}
	return FoldV2(f, e)
}

// reserve adds the amount of a reservation to the held ones, or subtracts it. METERED features have no account that holds it.
func (f *State) reserve(e *events.Envelope, sign int64) error {
	var r events.Reservation
	if err := json.Unmarshal(e.Payload, &r); err != nil {
		return fmt.Errorf("read a reservation: %w", err)
	}
	if r.FeatureType == domain.FeatureQuota {
		f.Held(e.TenantID, r.Feature, r.PeriodKey, sign*r.Amount)
	}
	return nil
}
