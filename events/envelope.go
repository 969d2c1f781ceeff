package events

import (
	"encoding/json"
	"math/big"
	"time"

	"github.com/google/uuid"
)

// Actor is the user, service or key that caused an event.
type Actor struct {
	Type string `json:"type"` // user, system, service or api_key
	ID   string `json:"id"`
	Via  string `json:"via,omitempty"` // ViaConsole; "": the API
}

// ViaConsole is the Via of actions of the console.
const ViaConsole = "console"

// BootstrapKeyID is the id of the configured operator key, the same in every deployment, so that its actions can be found in the log.
var BootstrapKeyID = uuid.NewSHA1(uuid.NameSpaceURL, []byte("meterplex:bootstrap-operator-key"))

// BootstrapKeyName is its name.
const BootstrapKeyName = "bootstrap operator key"

// Producer is the process that wrote an event.
type Producer struct {
	Service  string `json:"service"`
	Instance string `json:"instance"`
	Commit   string `json:"commit"`
}

// Metadata describes how to store and order an event. It is not part of the payload.
type Metadata struct {
	RetentionClass string `json:"retentionClass"`
	DataResidency  string `json:"dataResidency"`
	OrderingKey    string `json:"orderingKey"`
	Replay         string `json:"replay,omitempty"` // "offline": sent from a queue after an outage
}

// Envelope is an event in the log and on the broker.
type Envelope struct {
	LogID         uuid.UUID // the log of the event, from the record's header; Nil: unknown
	EventID       uuid.UUID // UUIDv7, made by the server
	Subject       Subject
	TenantID      uuid.UUID // Platform if it belongs to no tenant
	Position      Position
	Previous      int64 // number of the preceding event of the same topic and partition, 0 if it is the first
	Epoch         int32
	CorrelationID uuid.UUID // the trace, or Nil
	CausationID   uuid.UUID // the event that caused it, or Nil
	Actor         Actor
	Producer      Producer
	OccurredAt    time.Time
	RecordedAt    time.Time
	DedupeKey     string
	Payload       json.RawMessage
	Replay        string
	// Vocabulary and Residency are those that the event was recorded under. An envelope
	// read from a record has no vocabulary.
	Vocabulary *Vocabulary
	Residency  string
	// Withheld marks a record that replaces an event that could not be published: same
	// position, no payload. Consumers advance past it without folding it.
	Withheld bool
	// WithheldLate marks an event that was withheld after its consumer had folded it: it counts.
	WithheldLate bool
}

// Counts are the amounts that an event adds to the counters of its partition's head
// row, the terms of "accepted = aggregated + rejected + in flight + parked".
type Counts struct{ Accepted, Validated, Rejected, Parked int64 }

// TracedEvent is an event in its trace. Without a trace Trace is nil.
type TracedEvent struct{ Trace, EventID uuid.UUID }

// Pending is an event that is decided but not yet appended: it has no position.
type Pending struct {
	EventID       uuid.UUID // UUIDv7, made by the caller; after an unknown commit it shows whose event was stored
	Subject       Subject
	TenantID      uuid.UUID
	DedupeKey     string
	Canonical     byte // version of the canonical form, if payloads are compared to tell a retry from a conflict; 0: no comparison
	CorrelationID uuid.UUID
	CausationID   uuid.UUID
	Actor         Actor
	OccurredAt    time.Time
	// Payload has the form of the event's row (package codec): that of usage and of verdicts is short.
	Payload json.RawMessage
	Replay  string
	// Residency is the tenant's data residency. For the platform's own events the log
	// fills in the region of the deployment. It refuses a tenant's event without one.
	Residency string
	Counts    Counts
	// Sent, if set, is compared in place of the payload to tell a retry from a conflict: the payload has members that
	// the server added.
	Sent []byte
	// Account, if set, is the change of an account. The log applies it when it writes the event's row, and at no other
	// time.
	Account *AccountChange
	// Reservation, if set, is the state of a reservation after the event, stored with the row like Account.
	Reservation *ReservationState
	// Correction, if set, is the change of an event by a correction or a retraction, which this verdict counts. It is stored with the row
	// like Account.
	Correction *AppliedCorrection
	// Repeats, if set, is the event that this one repeats. It is not stored: traces link the two.
	Repeats *TracedEvent
	// Adjustment, if set, is a difference of a closed period, which this verdict or proposal is. It is stored with the row like Account.
	Adjustment *Adjustment
	// Decided, if set, is the change of the states of adjustments, made with the row like Account.
	Decided *AdjustmentChange
}

// Adjustment is a difference of a line of a closed period. Its id and its position are those of the event.
type Adjustment struct {
	PeriodKey, Feature string
	Snapshot           int
	SubscriptionID     uuid.UUID
	Kind               string
	Amount             *big.Int
	EventCount         int64
	Recorded           int64  // number of the recorded event; 0: there is none
	SourceEventID      string // the producer's; "" without one
	RebuildID          *uuid.UUID
}

// AdjustmentChange sets the state of pending adjustments: those named by IDs, else those of a recorded event or a scope.
type AdjustmentChange struct {
	State, Reason string
	IDs           []uuid.UUID
	Recorded      int64 // number of the recorded event that no longer counts
	Scope         *AdjustmentScope
	Snapshot      int // of the scope
}

// AppliedCorrection is the n-th change of a target.
type AppliedCorrection struct {
	*CorrectedUsage
	Number int   // n, from 1
	Cause  int64 // number of the recorded correction or retraction
}

// AccountChange adds amounts to the account of a tenant's QUOTA feature in a period.
type AccountChange struct {
	Feature, PeriodKey string
	Used, Held         int64
}
