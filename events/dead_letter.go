package events

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Stages of failure.
const (
	StageIngestion   = "INGESTION"
	StagePublishing  = "PUBLISHING"
	StageValidation  = "VALIDATION"
	StageAggregation = "AGGREGATION"
)

// States of a dead letter.
const (
	StatusFailed    = "FAILED"
	StatusRetrying  = "RETRYING"
	StatusResolved  = "RESOLVED"
	StatusDiscarded = "DISCARDED"
)

// Failed is the payload of PublishFailed and AggregationFailed: an event of the log
// that stays parked until it is retried or discarded.
type Failed struct {
	SourcePosition int64           `json:"sourcePosition"` // the event that failed
	SourceEventID  uuid.UUID       `json:"sourceEventId"`
	SourceSubject  string          `json:"sourceSubject"`
	Topic          string          `json:"topic"`
	Stage          string          `json:"stage"`
	Code           string          `json:"code"`
	Reason         string          `json:"reason"`
	DeadLetterID   uuid.UUID       `json:"deadLetterId"` // this event's own id, or after a retry that of the first failure
	Attempt        int             `json:"attempt"`
	Payload        json.RawMessage `json:"payload"` // of the event that failed
}

// Retry is the payload of RetryRequested (a command).
type Retry struct {
	DeadLetterID uuid.UUID `json:"deadLetterId"`
	Attempt      int       `json:"attempt,omitempty"` // number of the requested retry, so two equal requests cause one; 0: the next
	Reason       string    `json:"reason,omitempty"`
}

// RetryDone is the payload of DeadLetterRetried.
type RetryDone struct {
	DeadLetterID uuid.UUID `json:"deadLetterId"`
	Attempt      int       `json:"attempt"`
	RetryEventID uuid.UUID `json:"retryEventId"` // the appended event
	Position     Position  `json:"position"`     // of the appended event
}

// Closed is the payload of DeadLetterClosed.
type Closed struct {
	DeadLetterID uuid.UUID `json:"deadLetterId"`
	Status       string    `json:"status"` // RESOLVED or DISCARDED
	Reason       string    `json:"reason,omitempty"`
}

// Refused is the payload of RetryRefused.
type Refused struct {
	DeadLetterID uuid.UUID `json:"deadLetterId"`
	Code         string    `json:"code"`
	Reason       string    `json:"reason"`
}

// Actions of a bulk request.
const (
	BulkRetry   = "retry"
	BulkDiscard = "discard"
)

// Bulk is the payload of BulkRequested. Each dead letter that matched at the time
// gets a separate event, caused by this one.
type Bulk struct {
	Action  string           `json:"action"`
	Filter  DeadLetterFilter `json:"filter"`
	Reason  string           `json:"reason,omitempty"`
	Matched int              `json:"matched"`
}

// DeadLetterFilter selects the dead letters that match all members that are set.
// Reason is a code. From and To bound the time of the first failure, half open.
type DeadLetterFilter struct {
	Status      string      `json:"status,omitempty"`
	Stage       string      `json:"stage,omitempty"`
	TenantID    *uuid.UUID  `json:"tenantId,omitempty"`
	Reason      string      `json:"reason,omitempty"`
	Fingerprint string      `json:"fingerprint,omitempty"`
	Feature     string      `json:"feature,omitempty"`
	Consumer    string      `json:"consumer,omitempty"`
	Topic       string      `json:"topic,omitempty"`
	IDs         []uuid.UUID `json:"ids,omitempty"`
	From        *time.Time  `json:"from,omitempty"`
	To          *time.Time  `json:"to,omitempty"`
}

// Empty reports whether the filter would match every dead letter.
func (f *DeadLetterFilter) Empty() bool {
	return f.Status == "" && f.Stage == "" && f.TenantID == nil && f.Reason == "" && f.Fingerprint == "" && f.Feature == "" &&
		f.Consumer == "" && f.Topic == "" && len(f.IDs) == 0 && f.From == nil && f.To == nil
}
