package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/relay/cursors"
	"github.com/meterplex/meterplex/infra/watermill"
)

// ReplayLog reads events for a replay.
type ReplayLog interface {
	// ReadTopic returns the events of one topic in a range of a partition, in order.
	ReadTopic(ctx context.Context, s events.Stretch, topic events.Topic) ([]events.Envelope, error)
}

// Replayer publishes ranges of the log again, beside the relay and without delaying it. A saga leases a replay to one instance; each cursor
// moves by compare-and-set. A chunk that was published by a process that died before moving the cursor is published again: marked as a
// replay, and byte for byte the same.
type Replayer struct {
	Pool      *pgxpool.Pool
	Log       ReplayLog
	Publisher message.Publisher
	Window    int64 // positions per chunk (1000)
}

const defaultWindow = 1000

// errMovedElsewhere ends the work of an instance whose lease of a replay was lost.
var errMovedElsewhere = errors.New("another instance moved the cursor of a replay, or ended it")

// Publish publishes the rest of a range. A partition that fails holds up no other: the first failure is returned after all. A record
// that the broker refuses for ever ends the work; refused is the reason.
func (r *Replayer) Publish(ctx context.Context, replay uuid.UUID) (refused string, failure error) {
	units, err := cursors.Open(ctx, r.Pool, replay)
	if err != nil {
		return "", err
	}
	for i := range units {
		err := r.publish(ctx, &units[i])
		if refusal := permanentRefusal(err); refusal != nil {
			return bounded(refusal.Error()), nil
		}
		if failure = cmp.Or(failure, err); ctx.Err() != nil || errors.Is(err, errMovedElsewhere) {
			return "", cmp.Or(failure, ctx.Err())
		}
	}
	return "", failure
}

// publish publishes a unit chunk by chunk, without an open transaction.
func (r *Replayer) publish(ctx context.Context, u *cursors.OpenUnit) error {
	for u.Cursor < u.UpTo && ctx.Err() == nil {
		end := min(u.Cursor+cmp.Or(r.Window, defaultWindow), u.UpTo)
		sent, err := r.chunk(ctx, u, end)
		if err != nil {
			return err
		}
		held, err := r.moveCursor(ctx, u, end, sent)
		if err != nil {
			return err // the next run publishes the chunk again, unless the cursor moved
		}
		if !held {
			return errMovedElsewhere
		}
	}
	return nil
}

// permanentRefusal returns the cause of a permanent refusal, or nil.
func permanentRefusal(err error) error {
	var partial *watermill.PublishError
	if errors.As(err, &partial) {
		for _, f := range partial.Failed {
			if f.Permanent {
				return f.Err
			}
		}
	}
	return nil
}

// chunk publishes the events between the cursor and end, marked as a replay.
func (r *Replayer) chunk(ctx context.Context, u *cursors.OpenUnit, end int64) (sent int64, err error) {
	list, err := r.Log.ReadTopic(ctx, events.Stretch{Partition: u.Partition, After: u.Cursor, UpTo: end}, u.Topic)
	if err != nil {
		return 0, err
	}
	var records []events.Record
	var writer codec.RecordWriter
	for i := range list {
		if u.Tenant != nil && list[i].TenantID != *u.Tenant {
			continue
		}
		record, err := writer.Record(&list[i])
		if err != nil {
			continue // a subject unknown to this binary: the relay has not published it either
		}
		record.Headers = append(record.Headers, events.Header{Key: events.HeaderReplay, Value: []byte("1")})
		records = append(records, record)
	}
	if len(records) == 0 {
		return 0, nil
	}
	if err := (watermill.Topics{Publisher: r.Publisher}).Publish(ctx, records); err != nil {
		return 0, fmt.Errorf("publishing a replay: %w", err)
	}
	return int64(len(records)), nil
}

// moveCursor reports false if another instance moved it, or the replay has ended. A move that was committed without an answer is discovered
// by the next run.
func (r *Replayer) moveCursor(ctx context.Context, u *cursors.OpenUnit, end, sent int64) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
	defer cancel()
	return u.Move(ctx, r.Pool, end, sent)
}
