package rebuild

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
)

// BulkFolder is a handler that reads the events of a rebuild itself: only the columns that
// it needs, event by event, without envelopes. It folds the events of a stretch, except
// those to leave out, with the same fold as Apply.
type BulkFolder interface {
	FoldStretch(ctx context.Context, tx pgx.Tx, g projections.Generation, s events.Stretch, leftOut map[int64]bool, p *Pace) (folded int64,
		failure *projections.Failure, err error)
}

// byPosition makes the planner read stretches of the log in the order of their positions, and no further than a batch. It would read all
// events of a tenant, or of the chunk, and sort them, for each batch: without statistics of partitions it takes them for few.
const byPosition = `SET LOCAL enable_sort = off`

// foldChunk folds a unit's events from its position up to another into its generation.
// Events that the live consumer dead-lettered are left out if it parks them: they count
// when they are retried, in every generation.
func (b *Rebuilder) foldChunk(ctx context.Context, tx pgx.Tx, u *unit, upTo int64) (int64, error) {
	if upTo <= u.position {
		return 0, nil
	}
	failed, err := b.failed.since(ctx, tx, u.consumer.Name, u.partition)
	if err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, byPosition); err != nil {
		return 0, fmt.Errorf("prepare to read the log: %w", err)
	}
	if bulk, ok := u.consumer.Handler.(BulkFolder); ok {
		leftOut, err := leftOutOf(ctx, tx, u, upTo, failed)
		if err != nil {
			return 0, err
		}
		n, failure, err := bulk.FoldStretch(ctx, tx, u.generation(), events.Stretch{Partition: u.partition, After: u.position, UpTo: upTo},
			leftOut, &u.pace)
		u.failure = failure
		return n, err
	}
	return b.foldBatches(ctx, tx, u, upTo, failed)
}

// readFailed follows the chain that links the events of one topic by their previous
// positions: from the last dead letter back to the last one seen before. 3 is the topic
// usage.dead-letter, 11 an event that a fold failed for.
var readFailed = events.SQL(`
WITH RECURSIVE chain AS (
  SELECT l.position, l.previous_position, l.subject, l.origin
  FROM log_heads h JOIN event_log_rows l ON l.partition = h.partition AND l.position = h.topic_positions[{usage.dead-letter}]
  WHERE h.partition = $2 AND l.position > $3
  UNION ALL
  SELECT l.position, l.previous_position, l.subject, l.origin
  FROM chain c JOIN event_log_rows l ON l.partition = $2 AND l.position = c.previous_position
  WHERE c.previous_position > $3)
SELECT c.position, CASE WHEN o.id IS NOT NULL THEN (l.payload ->> 'sourcePosition')::bigint END
FROM chain c
LEFT JOIN log_origins o ON c.subject = {usage.event.aggregation_failed} AND o.id = c.origin AND o.actor_type = 'service' AND o.actor_id = $1
LEFT JOIN event_log_rows l ON o.id IS NOT NULL AND l.partition = $2 AND l.position = c.position
WHERE o.id IS NOT NULL OR c.position = (SELECT max(position) FROM chain)`)

// readLife reads in which life of the database server the partition was last written. A failover
// or a restore may lose dead letters, and give their positions to other events.
const readLife = `SELECT epoch, coalesce(timeline, 0), coalesce(started_at, to_timestamp(0)) FROM log_heads WHERE partition = $1`

type life struct {
	epoch     int32
	timeline  int64
	startedAt time.Time
}

// failedMemo remembers the events that each consumer could not fold, so that the chain is
// followed once, not for each chunk. It starts again with each life of the server. No query runs under its mutex:
// one worker waits for no other's.
type failedMemo struct {
	mu    sync.Mutex
	known map[failedKey]failedUpTo
}

type failedKey struct {
	consumer  string
	partition int16
}

type failedUpTo struct {
	life      life
	letter    int64 // the last dead letter seen
	positions map[int64]bool
}

// since returns the positions of the events that the live consumer could not fold, among
// all that it has passed. Concurrent calls for one partition may each follow the chain; either result is kept.
func (m *failedMemo) since(ctx context.Context, tx pgx.Tx, consumer string, partition int16) (map[int64]bool, error) {
	key := failedKey{consumer, partition}
	was := m.of(key)
	now, err := was.extend(ctx, tx, consumer, partition)
	if err == nil && now.life != was.life {
		now, err = failedUpTo{}.extend(ctx, tx, consumer, partition)
	}
	if err != nil {
		return nil, err
	}
	m.keep(key, now)
	return now.positions, nil
}

func (m *failedMemo) of(key failedKey) failedUpTo {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[key]
}

func (m *failedMemo) keep(key failedKey, now failedUpTo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil {
		m.known = make(map[failedKey]failedUpTo)
	}
	m.known[key] = now
}

// extend follows the chain of dead letters down to the last one seen. It reads the life after
// the chain: if the life is the same then, it was during the read.
func (was failedUpTo) extend(ctx context.Context, tx pgx.Tx, consumer string, partition int16) (failedUpTo, error) {
	now := failedUpTo{letter: was.letter, positions: maps.Clone(was.positions)}
	if now.positions == nil {
		now.positions = make(map[int64]bool)
	}
	rows, err := tx.Query(ctx, readFailed, consumer, partition, was.letter)
	if err != nil {
		return now, fmt.Errorf("read failed events: %w", err)
	}
	var letter int64
	var failed *int64
	_, err = pgx.ForEachRow(rows, []any{&letter, &failed}, func() error {
		now.letter = max(now.letter, letter)
		if failed != nil {
			now.positions[*failed] = true
		}
		return nil
	})
	if err != nil {
		return now, fmt.Errorf("read failed events: %w", err)
	}
	if err := tx.QueryRow(ctx, readLife, partition).Scan(&now.life.epoch, &now.life.timeline, &now.life.startedAt); err != nil {
		return now, fmt.Errorf("read the life of the log: %w", err)
	}
	return now, nil
}

const readWithheld = `
SELECT position FROM withheld_records WHERE partition = $1 AND position > $2 AND position <= $3 AND NOT late`

// leftOutOf lists the events that the live consumer of a topic did not receive or could
// not fold. It returns a copy, since the argument is shared.
func leftOutOf(ctx context.Context, tx pgx.Tx, u *unit, upTo int64, failed map[int64]bool) (map[int64]bool, error) {
	rows, err := tx.Query(ctx, readWithheld, u.partition, u.position, upTo)
	if err != nil {
		return nil, fmt.Errorf("read withheld records: %w", err)
	}
	out := maps.Clone(failed)
	var position int64
	if _, err = pgx.ForEachRow(rows, []any{&position}, func() error { out[position] = true; return nil }); err != nil {
		return nil, fmt.Errorf("read withheld records: %w", err)
	}
	return out, nil
}

// foldBatches folds batch by batch, as the live consumer does.
func (b *Rebuilder) foldBatches(ctx context.Context, tx pgx.Tx, u *unit, upTo int64, failed map[int64]bool) (folded int64, err error) {
	c, g := u.consumer, u.generation()
	for after := u.position; after < upTo; u.pace.Rest(ctx) {
		u.pace.Work()
		batch, err := b.Log.ReadTx(ctx, tx, u.partition, after, upTo, c.Topic, c.MaxPerPartition)
		if err != nil {
			return 0, fmt.Errorf("read the log after %s: %w", events.Position{Partition: u.partition, Number: after}, err)
		}
		if len(batch) == 0 {
			break
		}
		after = batch[len(batch)-1].Position.Number
		batch = slices.DeleteFunc(batch, func(e events.Envelope) bool {
			return !g.HasTenant(e.TenantID) || c.Misses(&e) || c.Parks && failed[e.Position.Number]
		})
		if u.failure, err = consume.ApplyAside(ctx, tx, c, g, batch, func(p events.Position) bool {
			return failed[p.Number]
		}); err != nil || u.failure != nil {
			return 0, err
		}
		folded += int64(len(batch))
	}
	return folded, nil
}
