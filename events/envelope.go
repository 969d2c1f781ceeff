package events

import (
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Actor is who caused an event.
type Actor struct {
	Type string `json:"type"` // user, system, service or api_key
	ID   string `json:"id"`
}

// Producer is the process that wrote an event.
type Producer struct {
	Service  string `json:"service"`
	Instance string `json:"instance"`
	Commit   string `json:"commit"`
}

// Metadata stands beside the payload and is no part of what was said.
type Metadata struct {
	RetentionClass string `json:"retentionClass"`
	DataResidency  string `json:"dataResidency"`
	OrderingKey    string `json:"orderingKey"`
	Replay         string `json:"replay,omitempty"` // "offline": sent from a queue after an outage
}

// Envelope is an event as it lies in the log and travels the pipe.
type Envelope struct {
	LogID         uuid.UUID // the log that holds it, in the header of its record; Nil: not known
	EventID       uuid.UUID // UUIDv7, the server's own
	Subject       Subject
	TenantID      uuid.UUID // Platform where it belongs to no tenant
	Position      Position
	Previous      int64 // number of the event before it on the same topic and partition, 0 for none
	Epoch         int32
	CorrelationID uuid.UUID // the trace, Nil for none
	CausationID   uuid.UUID // the event that caused it, Nil for none
	Actor         Actor
	Producer      Producer
	OccurredAt    time.Time
	RecordedAt    time.Time
	DedupeKey     string
	Payload       json.RawMessage
	Replay        string
	// Vocabulary and Residency are those that the event was recorded under. An envelope
	// that was read from a record has no vocabulary.
	Vocabulary *Vocabulary
	Residency  string
	// Withheld marks a record that stands in for one that could not be published:
	// same position, no payload. Consumers pass it without a fold.
	Withheld bool
	// Late is what was withheld after its consumer had folded it: it counts.
	Late bool
}

// Counts is what an event adds to the counters of its partition's head row,
// which are the terms of "accepted = aggregated + rejected + in flight + parked".
type Counts struct{ Accepted, Validated, Rejected, Parked int64 }

// Pending is an event that has been decided and waits for its place in the log.
type Pending struct {
	EventID       uuid.UUID // UUIDv7, made by the caller; tells "mine" from "another's" after an unknown commit
	Subject       Subject
	TenantID      uuid.UUID
	DedupeKey     string
	Canonical     byte // the rules that the payload is written by, where it tells a retry from a conflict; 0: nothing is compared
	CorrelationID uuid.UUID
	CausationID   uuid.UUID
	Actor         Actor
	OccurredAt    time.Time
	// Payload is whole. Of recorded usage, which is written in short from the start,
	// there is Body, as AppendBody writes it, in its place.
	Payload json.RawMessage
	Body    []byte
	Replay  string
	// Residency is the tenant's data residency. The log fills in the region of the
	// deployment for the platform's own events, and refuses an event of a tenant
	// without one.
	Residency string
	Counts    Counts
}

// Whole is the payload, also where there is Body in its place.
func (p *Pending) Whole() json.RawMessage {
	if p.Body != nil {
		return WholePayload(p.Subject, p.DedupeKey, p.OccurredAt, p.Body)
	}
	return p.Payload
}

// Hash is what another payload under the same key is held against: a byte for the
// rules that both are written by and the SHA-256; nil where nothing is compared. It is
// worked out when it is asked for: of what is new nobody asks.
func (p *Pending) Hash() []byte {
	if p.Canonical == 0 {
		return nil
	}
	sum := sha256.Sum256(p.Whole())
	return append([]byte{p.Canonical}, sum[:]...)
}
