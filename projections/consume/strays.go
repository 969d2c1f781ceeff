package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// Codes of records that could not be read.
const (
	CodeUndecodable    = "record_undecodable" // its bytes are not an event
	CodeUnknownSubject = "subject_unknown"    // this binary does not know its type or version
)

// maxParkedBytes is the most bytes kept of a record's key, and of its value.
const maxParkedBytes = 4 << 10

// parkStrays makes sure that each record without a place in the log has a dead letter,
// once per place on the broker and content. They belong to the platform, not to a tenant.
func (r *Runner) parkStrays(ctx context.Context, strays []*events.Record) error {
	for len(strays) > 0 {
		n := min(len(strays), projections.MaxWithFollowUps)
		pending := make([]events.Pending, n)
		for i, record := range strays[:n] {
			pending[i] = r.stray(record)
		}
		err := pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
			_, err := r.Log.AppendTx(ctx, tx, pending)
			return err
		})
		if err != nil {
			return fmt.Errorf("park records that are not of this log: %w", err)
		}
		strays = strays[n:]
	}
	return nil
}

func (r *Runner) stray(record *events.Record) events.Pending {
	cause := events.Envelope{TenantID: events.Platform, OccurredAt: time.Now()}
	p := projections.FollowUp(&cause, r.NewID(), events.RecordParked, events.ParkedRecord{
		Topic: record.Topic.Name(), KafkaPartition: record.Partition, KafkaOffset: record.Offset, Code: CodeUndecodable,
		Reason: "the record has no place in the log", Bytes: len(record.Value), Key: truncated(record.Key), Value: truncated(record.Value),
	}, r.Consumer.Name)
	p.DedupeKey = events.KeyParked(record)
	return p
}

func truncated(b []byte) []byte { return b[:min(len(b), maxParkedBytes)] }

// resolvedRecords returns the dead letters of unreadable records whose events were read from the
// log instead: they are RESOLVED from the start. An event that failed to fold has a dead
// letter of its own.
func (r *Runner) resolvedRecords(runs []*partitionRun, chain []events.Envelope, failed []projections.Failure) (pending []events.Pending) {
	unread := unreadIn(runs)
	if len(unread) == 0 {
		return nil
	}
	for i := range chain {
		e := &chain[i]
		it := unread[e.Position]
		if it == nil || projections.HasFailed(failed, e.Position) {
			continue
		}
		id := r.NewID()
		code := CodeUndecodable
		if errors.Is(it.fault, codec.ErrUnknownSubject) {
			code = CodeUnknownSubject
		}
		delete(unread, e.Position)
		pending = append(pending,
			projections.FollowUp(e, id, events.RecordParked, events.ParkedRecord{
				Topic: r.Consumer.Topic.Name(), KafkaPartition: e.Position.Partition, KafkaOffset: it.offset, Code: code,
				Reason: projections.Bounded(it.fault.Error()), SourcePosition: e.Position.Number,
			}, r.Consumer.Name),
			projections.Closing(e, r.NewID(), events.Closed{DeadLetterID: id, Status: events.StatusResolved, Reason: "the log has the event"}, r.Consumer.Name))
	}
	return pending
}

// unreadIn returns the reached places whose delivered records could not be read.
func unreadIn(runs []*partitionRun) map[events.Position]*item {
	var unread map[events.Position]*item
	for _, l := range runs {
		for i := range l.items[:l.taken] {
			it := &l.items[i]
			if it.fault == nil {
				continue
			}
			if unread == nil {
				unread = make(map[events.Position]*item)
			}
			unread[it.place.Position] = it
		}
	}
	return unread
}
