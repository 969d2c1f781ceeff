package entitlements

import (
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// V3 is the version of the fold in this file.
const V3 = projections.ProjectionEntitlements + "/v3"

// FoldV3 is the fold entitlement_reads/v3: FoldV2, and admitted usage counts when it is recorded, as its account does, and not again
// with its verdict. The discard of a dead letter leaves admitted usage as it is: it was granted.
func FoldV3(f *State, e *events.Envelope) error {
	switch e.Subject {
	case events.UsageAdmitted:
		admitted, err := codec.AdmittedOf(e.Payload)
		if err != nil {
			return err
		}
		f.Used(e.TenantID, admitted.Feature, admitted.Admitted.PeriodKey, admitted.Amount)
		return nil
	case events.UsageValidated:
		v, err := codec.VerdictOf(e)
		if err == nil && !v.Admitted {
			f.Used(e.TenantID, v.Feature, v.PeriodKey, v.Amount)
		}
		return err
	case events.DeadLetterClosed:
		return f.discard(e, func(v parkedVerdict) bool { return !v.admitted })
	}
	return FoldV2(f, e)
}
