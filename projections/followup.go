package projections

import (
	"encoding/json"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// FollowUp returns an event caused by another. Its key is its own id: enough if it
// is appended in the transaction that moves a checkpoint, which commits once. It panics if
// the payload is not of the subject's type.
func FollowUp(cause *events.Envelope, id uuid.UUID, subject events.Subject, payload any, by string) events.Pending {
	body, err := codec.EncodePayload(subject, payload)
	if err != nil {
		panic("projections: " + err.Error())
	}
	return events.Pending{
		EventID: id, Subject: subject, TenantID: cause.TenantID, DedupeKey: events.KeyEvent(id),
		CorrelationID: cause.CorrelationID, CausationID: cause.EventID, Actor: events.Actor{Type: "service", ID: by},
		OccurredAt: cause.OccurredAt, Payload: body, Residency: cause.Residency,
	}
}

// Closing returns the event that closes a dead letter, at most once.
func Closing(cause *events.Envelope, id uuid.UUID, end events.Closed, by string) events.Pending {
	p := FollowUp(cause, id, events.DeadLetterClosed, end, by)
	p.DedupeKey = events.KeyClosed(end.DeadLetterID)
	return p
}

// RetryOf returns the dead letter that an event retries and the attempt's number;
// Nil if the event is not a retry.
func RetryOf(e *events.Envelope) (uuid.UUID, int) {
	var retry struct {
		DeadLetterID uuid.UUID `json:"deadLetterId"`
		Attempt      int       `json:"attempt"`
	}
	isRetry := e.Subject == events.UsageRetried || e.Subject == events.Reaggregated
	if !isRetry || json.Unmarshal(e.Payload, &retry) != nil {
		return uuid.Nil, 0
	}
	return retry.DeadLetterID, retry.Attempt
}
