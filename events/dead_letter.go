package events

import (
	"time"

	"github.com/google/uuid"
)

// What a bulk does with the dead letters that it finds.
const (
	BulkRetry   = "retry"
	BulkDiscard = "discard"
)

// Bulk is the payload of BulkRequested. The dead letters that were found at the
// time have an event each, which this one is the cause of.
type Bulk struct {
	Action  string           `json:"action"`
	Filter  DeadLetterFilter `json:"filter"`
	Reason  string           `json:"reason,omitempty"`
	Matched int              `json:"matched"`
}

// DeadLetterFilter says which dead letters are meant: those that match all members
// that are set. Reason is a code; From and To are of the first failure, half open.
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

// Empty says that the filter would mean every dead letter there is.
func (f *DeadLetterFilter) Empty() bool {
	return f.Status == "" && f.Stage == "" && f.TenantID == nil && f.Reason == "" && f.Fingerprint == "" && f.Feature == "" &&
		f.Consumer == "" && f.Topic == "" && len(f.IDs) == 0 && f.From == nil && f.To == nil
}

// ParkedRecord is the payload of RecordParked: what a consumer found on its topic
// and could not read. Where it says which event of the log it carries, that event
// was read from the log and the dead letter is closed at once; what says nothing
// belongs to the platform.
type ParkedRecord struct {
	Topic          string `json:"topic"`
	KafkaPartition int16  `json:"kafkaPartition"`
	KafkaOffset    int64  `json:"kafkaOffset"` // -1 where the pipe has none
	Code           string `json:"code"`
	Reason         string `json:"reason"`
	SourcePosition int64  `json:"sourcePosition,omitempty"` // of the event that it carries
	Bytes          int    `json:"bytes,omitempty"`          // of its value
	Key            []byte `json:"key,omitempty"`            // base64, as far as it is kept
	Value          []byte `json:"value,omitempty"`          // base64, as far as it is kept
}
