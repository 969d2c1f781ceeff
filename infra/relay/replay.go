package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/domain/retries"
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

// ReplayEnds records the result of replays.
type ReplayEnds interface {
	// EndRanges ends the ranges that are published completely.
	EndRanges(ctx context.Context) error
	Fail(ctx context.Context, id uuid.UUID, topic, failure string) error
}

// Replayer publishes ranges of the log again. It runs beside the relay and never delays it. Any number of
// instances share the work: each partition of a replay is leased, and its cursor moves by
// compare-and-set. A chunk that was published by a process that died before moving the cursor is
// published again: marked as a replay, and byte for byte the same.
type Replayer struct {
	Pool      *pgxpool.Pool
	Log       ReplayLog
	Ends      ReplayEnds
	Publisher message.Publisher
	Requests  <-chan struct{} // hint: a replay was requested; may be nil
	Logger    *slog.Logger

	Ticks    loop.Ticks    // the moments of looking for work
	Every    time.Duration // their interval (1 s)
	LeaseTTL time.Duration // delay before the partition of a dead instance is leased again (2 min)
	Window   int64         // positions per chunk (1000)
}

// Defaults of a Replayer. The lease is longer than the longest publish call.
const (
	defaultReplayEvery = time.Second
	defaultReplayLease = 2 * time.Minute
	defaultWindow      = 1000
)

// Run replays until ctx ends. It retries while the database or the pipe is unreachable.
func (r *Replayer) Run(ctx context.Context) error {
	c := *r
	c.Every, c.LeaseTTL = cmp.Or(c.Every, defaultReplayEvery), cmp.Or(c.LeaseTTL, defaultReplayLease)
	c.Window = int64(cmp.Or(int(c.Window), defaultWindow))
	log := retries.New(c.Logger, slog.LevelWarn, "a replay failed and will be retried", "")
	for c.pause(ctx) {
		log.Report(ctx, c.round(ctx))
	}
	return nil
}

// pause waits until there may be work. It returns false if ctx ends.
func (r *Replayer) pause(ctx context.Context) bool {
	timer := time.NewTimer(r.Ticks.Until(r.Every))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Requests:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// round publishes all due units, then ends the replays that are published completely. The next round retries the units
// that failed: they hold up neither the others nor the ends.
func (r *Replayer) round(ctx context.Context) error {
	var running bool
	if err := r.Pool.QueryRow(ctx, anyRunningSQL).Scan(&running); err != nil {
		return fmt.Errorf("looking for replays: %w", err)
	}
	if !running {
		return nil
	}
	failure := r.publishDue(ctx)
	var done bool
	if err := r.Pool.QueryRow(ctx, anyPublishedSQL).Scan(&done); err != nil {
		return errors.Join(failure, fmt.Errorf("looking for completed replays: %w", err))
	}
	if !done || ctx.Err() != nil {
		return failure
	}
	return errors.Join(failure, r.Ends.EndRanges(ctx))
}

// publishDue publishes each due unit, and returns the first failure.
func (r *Replayer) publishDue(ctx context.Context) (failure error) {
	var failed []*cursors.Claimed
	for ctx.Err() == nil {
		u, err := cursors.Claim(ctx, r.Pool, r.LeaseTTL, failed...)
		if err != nil {
			return cmp.Or(failure, err)
		}
		if u == nil {
			break
		}
		if err := r.publish(ctx, u); err != nil {
			failed, failure = append(failed, u), cmp.Or(failure, err)
		}
	}
	return failure
}

// anyRunningSQL is all that a round without a replay asks: to plan and run the other statements cost the server four times as much.
const anyRunningSQL = `SELECT EXISTS (SELECT FROM replays WHERE state = 'RUNNING' AND kind = 'range')`

const anyPublishedSQL = `SELECT EXISTS (SELECT FROM replays r WHERE r.state = 'RUNNING' AND r.kind = 'range'
 AND NOT EXISTS (SELECT FROM replay_units u WHERE u.replay_id = r.id AND u.cursor < u.upto))`

// publish publishes a unit chunk by chunk, without an open transaction. After an error it releases the
// unit.
func (r *Replayer) publish(ctx context.Context, u *cursors.Claimed) error {
	for u.Cursor < u.UpTo {
		end := min(u.Cursor+r.Window, u.UpTo)
		sent, err := r.chunk(ctx, u, end)
		if refused := permanentRefusal(err); refused != nil {
			return r.Ends.Fail(ctx, u.Replay, u.Topic.Name(), bounded(refused.Error()))
		}
		if err != nil {
			return errors.Join(err, r.release(ctx, u))
		}
		held, err := r.moveCursor(ctx, u, end, sent)
		if err != nil || !held {
			return err // the next lease holder publishes the chunk again
		}
		if ctx.Err() != nil {
			return r.release(context.WithoutCancel(ctx), u)
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
func (r *Replayer) chunk(ctx context.Context, u *cursors.Claimed, end int64) (sent int64, err error) {
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

// moveCursor reports false if the lease was lost or the replay has ended. A move that was committed
// without an answer is discovered by the next claim.
func (r *Replayer) moveCursor(ctx context.Context, u *cursors.Claimed, end, sent int64) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
	defer cancel()
	return u.Move(ctx, r.Pool, end, sent, r.LeaseTTL)
}

// release releases the lease, so that any instance can continue at once.
func (r *Replayer) release(ctx context.Context, u *cursors.Claimed) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
	defer cancel()
	return u.Release(ctx, r.Pool)
}
