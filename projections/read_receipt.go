package projections

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// States of a usage event in receipts and lists.
const (
	UsagePending      = "PENDING"       // recorded, without a verdict
	UsageValidated    = "VALIDATED"     // accepted by the validator, not in the aggregates yet
	UsageAggregated   = "AGGREGATED"    // counted
	UsageRejected     = "REJECTED"      // refused by the validator, or discarded
	UsageDeadLettered = "DEAD_LETTERED" // parked: could not be published or folded
)

// Receipt tells what became of one usage event, step by step. A step that has
// not happened is null. PayloadHash is the SHA-256 of Payload in hex, which is
// canonical JSON by CanonicalVersion. AsOfPosition is how far the figures are
// that AGGREGATED speaks of.
type Receipt struct {
	EventID          string           `json:"eventId"`
	TenantID         uuid.UUID        `json:"tenantId"`
	Status           string           `json:"status"`
	Payload          json.RawMessage  `json:"payload"`
	PayloadHash      string           `json:"payloadHash"`
	CanonicalVersion int              `json:"canonicalVersion"`
	Recorded         RecordedStep     `json:"recorded"`
	Published        *PublishedStep   `json:"published"`
	Validated        *ValidatedStep   `json:"validated"`
	Rejected         *RejectedStep    `json:"rejected"`
	Aggregated       *AggregatedStep  `json:"aggregated"`
	Conflicts        []Conflict       `json:"conflicts"`
	Retries          []RetryStep      `json:"retries"`
	DeadLetters      []DeadLetterStep `json:"deadLetters"`
	AsOfPosition     events.Position  `json:"asOfPosition"`
}

// RecordedStep is the event's place in the log. LogEventID is the server's id of it.
type RecordedStep struct {
	At            time.Time       `json:"at"`
	Position      events.Position `json:"position"`
	LogEventID    uuid.UUID       `json:"logEventId"`
	CorrelationID *uuid.UUID      `json:"correlationId"`
}

// PublishedStep is the event's place on the broker. Offset and At are null where
// the relay kept none.
type PublishedStep struct {
	At        *time.Time `json:"at"`
	Topic     string     `json:"topic"`
	Partition int16      `json:"partition"`
	Offset    *int64     `json:"offset"`
}

// ValidatedStep is the validator's yes, and what it decided.
type ValidatedStep struct {
	At             time.Time       `json:"at"`
	Position       events.Position `json:"position"`
	SubscriptionID uuid.UUID       `json:"subscriptionId"`
	FeatureType    string          `json:"featureType"`
	PeriodKey      string          `json:"periodKey"`
	Amount         int64           `json:"amount"`
}

// RejectedStep is the validator's last no. Attempt is 0 for the first verdict.
type RejectedStep struct {
	At           time.Time       `json:"at"`
	Position     events.Position `json:"position"`
	Code         string          `json:"code"`
	Reason       string          `json:"reason"`
	Attempt      int             `json:"attempt"`
	DeadLetterID uuid.UUID       `json:"deadLetterId"`
}

// AggregatedStep names the row that the event is counted in. When it was folded
// is not kept for each event: no later than NoLaterThan.
type AggregatedStep struct {
	Feature        string    `json:"feature"`
	PeriodKey      string    `json:"periodKey"`
	SubscriptionID uuid.UUID `json:"subscriptionId"`
	NoLaterThan    time.Time `json:"noLaterThan"`
}

// RetryStep is a retry: a new event on the same way.
type RetryStep struct {
	At           time.Time       `json:"at"`
	Position     events.Position `json:"position"`
	DeadLetterID uuid.UUID       `json:"deadLetterId"`
	Attempt      int             `json:"attempt"`
}

// DeadLetterStep is a dead letter of the event.
type DeadLetterStep struct {
	ID     uuid.UUID `json:"id"`
	Stage  string    `json:"stage"`
	Status string    `json:"status"`
	Code   string    `json:"code"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"` // of the last failure
}

// Receipt gives the receipt of a producer's event; ErrNotFound where the tenant
// has none with this id.
func (r *Reads) Receipt(ctx context.Context, v Viewer, tenant uuid.UUID, eventID string, w Wait) (Receipt, error) {
	return Receipt{}, errUnwritten
}
