package events

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Usage is the payload of UsageRecorded: the canonical JSON (RFC 8785) of the
// producer's event, verbatim. The struct only decodes it; it encodes that of Admitted.
type Usage struct {
	EventID   string          `json:"eventId"`
	Feature   string          `json:"feature"`
	Amount    int64           `json:"amount"`
	Timestamp time.Time       `json:"timestamp"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
	Type      string          `json:"type"`
	Source    string          `json:"source,omitempty"`
}

// Admitted is the payload of UsageAdmitted: usage that was granted against a limit when it was recorded. It has the
// members of Usage as the client sent them; the time of a consumption is the server's.
type Admitted struct {
	Usage
	Admitted Admission `json:"admitted"`
}

// Routes on which usage is admitted.
const (
	ByConsume = "consume" // POST /entitlements/{feature}/consume
	ByCommit  = "commit"  // POST /entitlements/{feature}/reservations/{id}/commit
	ByEnforce = "enforce" // POST /usage/events and usage.commands, by a plan that enforces its limit
)

// OverageRecord is the value of overage by which a commit may use more than its reservation holds.
const OverageRecord = "record"

// Admission is the grant of an admitted event. The verdict on the event follows from it.
type Admission struct {
	By             string       `json:"by"`
	SubscriptionID uuid.UUID    `json:"subscriptionId"`
	FeatureType    string       `json:"featureType"`
	PeriodKey      string       `json:"periodKey"`
	Limit          *int64       `json:"limit"` // nil: no limit
	Used           *json.Number `json:"used"`  // of the account after the event, an integer; nil without an account (METERED)
	Held           *json.Number `json:"held"`
	// The members below are of commits.
	ReservationID string `json:"reservationId,omitempty"`
	HeldAmount    int64  `json:"heldAmount,omitempty"` // no longer held after the event
	Overage       string `json:"overage,omitempty"`    // OverageRecord: the amount may be above HeldAmount
}

// Types of usage events.
const (
	TypeUsage      = "usage"      // counts
	TypeCorrection = "correction" // replaces the amount of recorded usage
	TypeRetraction = "retraction" // takes recorded usage back, for ever
)

// Correction is the payload of UsageCorrected: the canonical JSON (RFC 8785) of the producer's event, verbatim. The struct only decodes it
// and never encodes it. It also reads a Retraction.
type Correction struct {
	EventID       string          `json:"eventId"`
	Feature       string          `json:"feature"`
	Amount        *int64          `json:"amount,omitempty"` // the new amount; nil in a retraction
	Timestamp     time.Time       `json:"timestamp"`        // when the correction was made
	CorrectionRef string          `json:"correctionRef"`    // eventId of the target, which is usage of the same feature
	Metadata      json.RawMessage `json:"metadata,omitempty"`
	Type          string          `json:"type"`
	Source        string          `json:"source,omitempty"`
}

// Retraction is the payload of UsageRetracted, as Correction without an amount.
type Retraction struct {
	EventID       string          `json:"eventId"`
	Feature       string          `json:"feature"`
	Timestamp     time.Time       `json:"timestamp"`
	CorrectionRef string          `json:"correctionRef"`
	Metadata      json.RawMessage `json:"metadata,omitempty"`
	Type          string          `json:"type"`
	Source        string          `json:"source,omitempty"`
}

// Retried is the payload of UsageRetried: a recorded event that goes to the validator
// again. The key of the verdict is RawPosition, so the event counts once.
type Retried struct {
	RawPosition  int64     `json:"rawPosition"` // number of the UsageRecorded event
	DeadLetterID uuid.UUID `json:"deadLetterId"`
	Attempt      int       `json:"attempt"` // 1 for the first retry
	// Rejected is true if the event was ever rejected, false if it was only parked.
	Rejected bool            `json:"rejected"`
	Usage    json.RawMessage `json:"usage"` // the recorded payload
}

// Validated is the payload of UsageValidated: the amounts for the aggregates and the
// grounds of the verdict. The validator decides subscription, feature type and
// period, so later consumers need no lookup. validatedAt is the envelope's recordedAt.
type Validated struct {
	RawPosition             int64     `json:"rawPosition"`
	EventID                 string    `json:"eventId"` // the producer's
	Feature                 string    `json:"feature"`
	Amount                  int64     `json:"amount"` // added to the sum; below 0 if a correction takes back
	Count                   int64     `json:"count"`  // added to the event count
	Timestamp               time.Time `json:"timestamp"`
	ValidatedSubscriptionID uuid.UUID `json:"validatedSubscriptionId"`
	FeatureType             string    `json:"featureType"`
	PeriodKey               string    `json:"periodKey"`
	// Grant is the position of the change of the subscription that made the grant in force at Timestamp, as known at the verdict;
	// GrantBefore before the start of the first subscription, and 0, left out, if the grant names no price.
	Grant int64 `json:"grant,omitempty"`
	// Admitted is true for the verdict on admitted usage, whose account counted it when it was recorded.
	Admitted bool `json:"admitted,omitempty"`
	// CorrectedUsage is set in the verdict on a correction or a retraction. Amount is then After less Before, and Count is 0 or -1;
	// subscription, feature type, period and Timestamp are those of the target.
	*CorrectedUsage
	// Late is set if the event is behind the cut of its closed period: the verdict counts as an adjustment.
	Late *Late `json:"late,omitempty"`
}

// GrantBefore is the grant of usage before the start of the tenant's first subscription.
const GrantBefore = -1

// CorrectedUsage is the change of its target by a correction or a retraction.
type CorrectedUsage struct {
	Kind           string `json:"kind"` // TypeCorrection or TypeRetraction
	TargetPosition int64  `json:"targetPosition"`
	TargetEventID  string `json:"targetEventId"`
	Before         int64  `json:"before"` // amount of the target
	After          int64  `json:"after"`  // 0 after a retraction
}

// Rejected is the payload of UsageRejected.
type Rejected struct {
	RawPosition  int64     `json:"rawPosition"`
	EventID      string    `json:"eventId"`
	Feature      string    `json:"feature"`
	Code         string    `json:"code"`
	Reason       string    `json:"reason"`
	DeadLetterID uuid.UUID `json:"deadLetterId"` // this event's own id, or after a retry that of the first rejection
	Attempt      int       `json:"attempt"`      // 0 for the first verdict
}

// Conflicted is the payload of UsageConflicted: both hashes, and the refused payload.
type Conflicted struct {
	EventID      string          `json:"eventId"`
	RawPosition  int64           `json:"rawPosition"`  // of the event that stays
	FirstHash    string          `json:"firstHash"`    // hex SHA-256 of the payload that stays
	ConflictHash string          `json:"conflictHash"` // hex SHA-256 of the payload that was refused
	Payload      json.RawMessage `json:"payload"`      // the refused payload
}

// Duplicates is the payload of DuplicatesSeen.
type Duplicates struct {
	Count   int64        `json:"count"`
	From    time.Time    `json:"from"`              // start of the second that Count covers
	Samples []SeenSample `json:"samples,omitempty"` // of the second, at most MaxSeenSamples
}

// Refusals is the payload of RefusalsSeen. It is no record of each refused event: the producer got its verdict.
type Refusals struct {
	Count   int64          `json:"count"`
	From    time.Time      `json:"from"` // start of the second that Count covers
	Groups  []RefusalGroup `json:"groups"`
	Samples []SeenSample   `json:"samples"` // of the second, at most MaxSeenSamples
}

// RefusalGroup counts events that were refused for the same code and feature.
type RefusalGroup struct {
	Code    string `json:"code"`
	Feature string `json:"feature"` // "" if the event has no valid one; OtherFeatures: of several features
	Count   int64  `json:"count"`
}

// SeenSample is one of the events that are counted, and not recorded.
type SeenSample struct {
	EventID string     `json:"eventId,omitempty"` // "": the event has no valid one
	KeyID   *uuid.UUID `json:"keyId,omitempty"`   // of the API key that sent it; nil: a message brought it
	// The members below are of refused events.
	Code      string     `json:"code,omitempty"`
	Feature   string     `json:"feature,omitempty"`
	Timestamp *time.Time `json:"timestamp,omitempty"` // nil: the event has no valid one
	Payload   string     `json:"payload,omitempty"`   // as sent, its first MaxSeenPayload bytes
}

// Bounds of the events that count others.
const (
	MaxSeenSamples = 10
	MaxSeenPayload = 1024
	// MaxRefusalGroups bounds the groups of one event, without those of OtherFeatures.
	MaxRefusalGroups = 20
)

// OtherFeatures is the feature of refused events that have no group of their own. No feature has this name.
const OtherFeatures = "*"

// Reaggregate is the payload of Reaggregated: a verdict that goes to the aggregator
// again.
type Reaggregate struct {
	DeadLetterID uuid.UUID `json:"deadLetterId"`
	Attempt      int       `json:"attempt"`
	Validated    Validated `json:"validated"`
}
