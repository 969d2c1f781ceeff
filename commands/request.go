package commands

import (
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// Caller is the origin of a command.
type Caller struct {
	TenantID      uuid.UUID // Platform for operator keys
	KeyID         uuid.UUID
	Scopes        []string
	CorrelationID uuid.UUID
	Replay        string // the Meterplex-Replay header
	Residency     string // of the tenant; "" for operator keys
	Admission     Admission
	// Actor is set if the caller does not act with a key.
	Actor events.Actor
	// Via is events.ViaConsole for actions of the console; "": the API.
	Via string
}

// ActsAs returns the actor of the caller's events.
func (c *Caller) ActsAs() events.Actor {
	if c.Actor.Type != "" {
		return c.Actor
	}
	return events.Actor{Type: "api_key", ID: c.KeyID.String(), Via: c.Via}
}

// Idempotency is an Idempotency-Key with the hash of its request. The zero value means
// that the caller sent no key.
type Idempotency struct {
	Key         string
	RequestHash [32]byte
}

// Request is the origin of a change: the caller, and the Idempotency-Key of its call.
type Request struct {
	By          Caller
	Idempotency Idempotency
	// If, if set, is the state that the change requires.
	If *Condition
	// Cause is the event that caused the change of a service; nil: a caller did.
	Cause uuid.UUID
	// Reason is the reason of a change whose command has none of its own; "": not given. Its event holds it.
	Reason string
}

// Key returns the key of the request's answer. It contains the API key's id, so that
// the holders of different API keys never share an answer.
func (r *Request) Key() string { return r.By.KeyID.String() + "/" + r.Idempotency.Key }

// Event makes an event of a tenant. With an Idempotency-Key, the log stores only one
// event for the request.
func (r *Request) Event(id uuid.UUID, at time.Time, tenant uuid.UUID, subject events.Subject, payload any) (events.Pending, error) {
	body, err := codec.EncodePayload(subject, payload)
	if err != nil {
		return events.Pending{}, err
	}
	body = codec.WithReason(subject, body, r.Reason)
	key := events.KeyEvent(id)
	if r.Idempotency.Key != "" {
		key = events.KeyCommand(r.Key())
	}
	return events.Pending{
		EventID: id, Subject: subject, TenantID: tenant, DedupeKey: key,
		CorrelationID: r.By.CorrelationID, CausationID: r.Cause, Actor: r.By.ActsAs(), OccurredAt: at, Payload: body,
	}, nil
}

// ServiceRequest is the request of a saga.
func ServiceRequest() Request {
	return Request{By: Caller{TenantID: events.Platform, Actor: events.Actor{Type: "service", ID: "meterplex-sagas"}}}
}

// FollowUp is the request of a saga whose events continue the trace of another event.
func FollowUp(of events.TracedEvent) Request {
	req := ServiceRequest()
	req.By.CorrelationID, req.Cause = of.Trace, of.EventID
	return req
}
