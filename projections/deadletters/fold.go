// Package deadletters is the projection dead_letter_events: failed events, their state
// and their retries. Commands, not the projection, decide about retries.
package deadletters

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// V1 is the version of the fold in this file.
const V1 = projections.ProjectionDeadLetters + "/v1"

//go:embed write.sql
var writeDeadLetters string

// Handler is the handler of usage.dead-letter: it stores failures and their
// outcome. Commands decide about retries, and read the log for that.
type Handler struct {
	Folds projections.Versions[Fold]
}

// Fold returns a dead letter after an event; nil if the event changes no row. The row is
// nil if the dead letter is not known yet. Fold is pure.
type Fold func(row *Row, id uuid.UUID, e *events.Envelope) (*Row, error)

// Row is a row of dead_letter_events.
type Row struct {
	id              uuid.UUID
	partition       int16
	tenant          uuid.UUID
	stage           string
	status          string
	code            string
	reason          string
	details         letterDetails
	producerEventID string
	feature         string
	source          int64
	topic           string
	kafkaPartition  *int16
	kafkaOffset     *int64
	payload         *string // nil: that of the recorded event, at source in the log
	retries         int32
	firstFailed     time.Time
	lastFailed      time.Time
}

// letterDetails are fields that only some dead letters have.
type letterDetails struct {
	Consumer      string     `json:"consumer,omitempty"` // the one that failed
	SourceEventID *uuid.UUID `json:"sourceEventId,omitempty"`
	SourceSubject string     `json:"sourceSubject,omitempty"`
	FirstHash     string     `json:"firstHash,omitempty"` // of a conflict, hex
	ConflictHash  string     `json:"conflictHash,omitempty"`
	ClosedReason  string     `json:"closedReason,omitempty"`
	RefusedCode   string     `json:"refusedCode,omitempty"` // why the last retry was not done
	RefusedReason string     `json:"refusedReason,omitempty"`
}

var errNotForDeadLetters = errors.New("the dead letter handler does not know the subject")

// letterOf returns the id of the dead letter that an event refers to: its own id, unless
// it continues an earlier one.
func letterOf(e *events.Envelope) (uuid.UUID, error) {
	var on struct {
		DeadLetterID uuid.UUID `json:"deadLetterId"`
	}
	switch e.Subject {
	case events.UsageConflicted, events.UsageRefused:
		return e.EventID, nil
	}
	if err := json.Unmarshal(e.Payload, &on); err != nil {
		return uuid.Nil, fmt.Errorf("read which dead letter an event speaks of: %w", err)
	}
	if on.DeadLetterID == uuid.Nil {
		return e.EventID, nil
	}
	return on.DeadLetterID, nil
}

// FoldV1 is the fold dead_letter_events/v1: it returns a dead letter after an
// event, or nil. An event about an unknown dead letter is ignored:
// its record was withheld, and has a dead letter of its own.
func FoldV1(d *Row, id uuid.UUID, e *events.Envelope) (*Row, error) {
	switch e.Subject {
	case events.UsageRejected:
		return foldRejected(failedAgain(d, id, e), e)
	case events.UsageConflicted:
		return foldConflicted(failedAgain(d, id, e), e)
	case events.UsageRefused:
		return foldRefused(failedAgain(d, id, e), e)
	case events.PublishFailed, events.AggregationFailed:
		return foldFailed(failedAgain(d, id, e), e)
	}
	if _, known := e.Subject.Info(); !known {
		return nil, errNotForDeadLetters
	}
	if d == nil {
		return nil, nil
	}
	next := *d
	return &next, next.meet(e)
}

// failedAgain returns the letter after any failure.
func failedAgain(d *Row, id uuid.UUID, e *events.Envelope) *Row {
	next := Row{id: id, partition: e.Position.Partition, tenant: e.TenantID, firstFailed: e.RecordedAt.UTC()}
	if d != nil {
		next = *d
	}
	next.status, next.lastFailed, next.details = events.StatusFailed, e.RecordedAt.UTC(), letterDetails{}
	return &next
}

func foldRejected(d *Row, e *events.Envelope) (*Row, error) {
	var no events.Rejected
	if err := json.Unmarshal(e.Payload, &no); err != nil {
		return nil, fmt.Errorf("read a rejection: %w", err)
	}
	d.stage, d.code, d.reason = events.StageValidation, no.Code, no.Reason
	d.producerEventID, d.feature, d.source = no.EventID, no.Feature, no.RawPosition
	d.topic, d.kafkaPartition, d.kafkaOffset, d.payload = events.TopicUsageRaw.Name(), &d.partition, nil, nil
	d.retries = max(d.retries, int32(no.Attempt))
	return d, nil
}

// A payload that ingest refused was never on a topic.
func foldConflicted(d *Row, e *events.Envelope) (*Row, error) {
	var c events.Conflicted
	if err := json.Unmarshal(e.Payload, &c); err != nil {
		return nil, fmt.Errorf("read a conflict: %w", err)
	}
	d.stage, d.code, d.reason = events.StageIngestion, "payload_conflict", "eventId was first used with another payload"
	d.producerEventID, d.feature, d.source = c.EventID, codec.UsageIn(c.Payload).Feature, c.RawPosition
	d.details.FirstHash, d.details.ConflictHash = c.FirstHash, c.ConflictHash
	d.topic, d.payload = events.TopicUsageRaw.Name(), text(c.Payload)
	return d, nil
}

func foldFailed(d *Row, e *events.Envelope) (*Row, error) {
	var f events.Failed
	if err := json.Unmarshal(e.Payload, &f); err != nil {
		return nil, fmt.Errorf("read a failure: %w", err)
	}
	d.stage, d.code, d.reason = f.Stage, f.Code, f.Reason
	if usage := codec.UsageIn(f.Payload); usage.EventID != "" { // a payload that is too large is not copied
		d.producerEventID, d.feature = usage.EventID, usage.Feature
	}
	d.source = f.SourcePosition
	d.details.Consumer, d.details.SourceEventID, d.details.SourceSubject = e.Actor.ID, &f.SourceEventID, f.SourceSubject
	d.topic, d.kafkaPartition, d.kafkaOffset, d.payload = f.Topic, &d.partition, nil, text(f.Payload)
	d.retries = max(d.retries, int32(f.Attempt))
	return d, nil
}

// meet folds an event of the letter's outcome. A refusal changes no status: the retry
// was not begun, and another one may be under way.
func (d *Row) meet(e *events.Envelope) error {
	var err error
	switch e.Subject {
	case events.DeadLetterRetried:
		var done events.RetryDone
		err = json.Unmarshal(e.Payload, &done)
		d.status, d.retries = events.StatusRetrying, max(d.retries, int32(done.Attempt))
	case events.DeadLetterClosed:
		var end events.Closed
		err = json.Unmarshal(e.Payload, &end)
		d.status, d.details.ClosedReason = end.Status, end.Reason
	case events.RetryRefused:
		var no events.Refused
		err = json.Unmarshal(e.Payload, &no)
		d.details.RefusedCode, d.details.RefusedReason = no.Code, no.Reason
	}
	if err != nil {
		return fmt.Errorf("read a dead letter's fate: %w", err)
	}
	return nil
}

func text(payload json.RawMessage) *string {
	if len(payload) == 0 {
		return nil
	}
	s := string(payload)
	return &s
}

// Apply folds the batch over the letters that it refers to and writes them back.
func (h *Handler) Apply(ctx context.Context, tx pgx.Tx, in projections.Generation, batch []events.Envelope) (projections.Result, error) {
	var ids []uuid.UUID
	for i := range batch {
		if id, err := letterOf(&batch[i]); err == nil {
			ids = append(ids, id)
		}
	}
	fold, err := h.Folds.Of(in.FoldVersion)
	if err != nil {
		return projections.Result{}, err
	}
	letters, err := h.load(ctx, tx, in, ids)
	if err != nil {
		return projections.Result{}, err
	}
	var result projections.Result
	changed := make(map[uuid.UUID]*Row)
	for i := range batch {
		e := &batch[i]
		failure := projections.Try(*e, func() error {
			id, err := letterOf(e)
			if err != nil {
				return err
			}
			next, err := fold(letters[id], id, e)
			if err == nil && next != nil {
				letters[id], changed[id] = next, next
			}
			return err
		})
		if failure != nil {
			result.Failed = append(result.Failed, *failure)
		}
	}
	return result, h.write(ctx, tx, in, slices.SortedFunc(maps.Values(changed), func(a, b *Row) int {
		return slices.Compare(a.id[:], b.id[:])
	}))
}
