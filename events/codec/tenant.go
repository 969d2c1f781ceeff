package codec

import (
	"encoding/json"
	"fmt"

	"github.com/meterplex/meterplex/events"
)

// AppendTenantWire appends the envelope as the event's tenant reads it: without the id of the actor, the instance that recorded it, the
// Idempotency-Key of a call, and the members of the payload that operators write for themselves.
func AppendTenantWire(dst []byte, e *events.Envelope) ([]byte, error) {
	view := *e
	if left := leftOut(e); len(left) > 0 {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(e.Payload, &members); err != nil {
			return nil, fmt.Errorf("events: read the payload of %s: %w", e.EventID, err)
		}
		for _, name := range left {
			delete(members, name)
		}
		payload, err := json.Marshal(members)
		if err != nil {
			return nil, fmt.Errorf("events: write the payload of %s: %w", e.EventID, err)
		}
		view.Payload = payload
	}
	return appendEnvelope(dst, &view, true)
}

// leftOut returns the members of an event's payload that its tenant does not read. A reason is left out unless the subject has no reason,
// or the service writes all its reasons.
func leftOut(e *events.Envelope) []string {
	switch e.Subject {
	case events.UsageRecorded, events.UsageAdmitted, events.UsageCorrected, events.UsageRetracted, events.UsageValidated,
		events.UsageRejected,
		events.UsageConflicted, events.UsageRefused, events.UsageRetried, events.Reaggregated, events.DuplicatesSeen, events.RefusalsSeen,
		events.PublishFailed, events.AggregationFailed, events.RetryRefused, events.ThresholdCrossed, events.PushFailed,
		events.ReservationHeld, events.ReservationExtended, events.ReservationReleased, events.ReservationExpired, events.PeriodFrozen,
		events.PeriodClosed, events.AdjustmentProposed:
		return nil
	case events.TenantCreated, events.TenantChanged:
		return []string{"reason", "metadata", "externalIds", "billing"}
	case events.PushCompared:
		return []string{"customer"}
	case events.OffboardingStepped: // the detail of a request is its reason
		return []string{"detail"}
	}
	return []string{"reason"}
}
