package cursors

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// Move moves a leased cursor from a position to a later one.
type Move struct {
	Lease
	From, To int64
}

// Publication is where on a topic the records of a stretch of a partition begin.
type Publication struct {
	Partition int16
	Topic     events.Topic
	From, To  int64
	Offset    int64
}

// moveSQL moves cursors in one transaction and one round trip. It locks the cursors in ascending order
// first, and compares again on the locked rows. A publication after the cursor moved back overwrites the
// earlier offset of the record. A restored cursor may have the fence and position of a batch that was read
// before the database lost its newest events. Therefore no cursor moves in another life of the server, or beyond the
// head.
const moveSQL = `WITH mine AS MATERIALIZED (
 SELECT c.partition, s.fence, s.was, s.becomes
 FROM relay_cursors c JOIN log_heads h USING (partition) JOIN unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[]) s (partition,
 fence, was, becomes) USING (partition)
 WHERE c.fence = s.fence AND c.position = s.was AND h.position >= s.becomes AND is_server_life(h.timeline, h.started_at)
 ORDER BY c.partition FOR UPDATE OF c
), stepped AS (
 UPDATE relay_cursors c SET position = mine.becomes, attempts = 0, last_error = NULL FROM mine
 WHERE c.partition = mine.partition AND c.fence = mine.fence AND c.position = mine.was RETURNING c.partition
), kept AS (
 INSERT INTO outbox_publications (partition, topic, from_position, to_position, base_offset)
 SELECT r.* FROM unnest($5::smallint[], $6::smallint[], $7::bigint[], $8::bigint[], $9::bigint[]) r (partition, topic, from_position,
 to_position, base_offset)
 JOIN stepped USING (partition) ON CONFLICT (partition, topic, from_position)
 DO UPDATE SET to_position = excluded.to_position, base_offset = excluded.base_offset, published_at = now()
) SELECT partition FROM stepped`

// movedSQL finds moves that were committed without an answer: the cursor is at its target under our
// fence, and no other instance can have put it there.
const movedSQL = `SELECT c.partition FROM relay_cursors c
 JOIN unnest($1::smallint[], $2::bigint[], $3::bigint[]) s (partition, fence, becomes) USING (partition, fence)
 WHERE c.position = s.becomes`

// Advance makes moves and keeps the publications of their partitions. It returns the partitions whose
// cursor moved: none whose lease was lost.
func Advance(ctx context.Context, db Database, moves []Move, publications []Publication) ([]int16, error) {
	partitions, fences, was, becomes := moveColumns(moves)
	var of, topics []int16
	var from, to, offsets []int64
	for _, p := range publications {
		of, topics = append(of, p.Partition), append(topics, int16(p.Topic))
		from, to, offsets = append(from, p.From), append(to, p.To), append(offsets, p.Offset)
	}
	moved, err := partitionsOf(ctx, db, moveSQL, partitions, fences, was, becomes, of, topics, from, to, offsets)
	if err != nil {
		return nil, fmt.Errorf("moving cursors: %w", err)
	}
	return moved, nil
}

// Moved returns the partitions where a move was made before, under the same lease.
func Moved(ctx context.Context, db Database, moves []Move) ([]int16, error) {
	partitions, fences, _, becomes := moveColumns(moves)
	moved, err := partitionsOf(ctx, db, movedSQL, partitions, fences, becomes)
	if err != nil {
		return nil, fmt.Errorf("checking whether cursors moved: %w", err)
	}
	return moved, nil
}

func moveColumns(moves []Move) (partitions []int16, fences, was, becomes []int64) {
	for _, m := range moves {
		partitions, fences = append(partitions, m.Partition), append(fences, m.Fence)
		was, becomes = append(was, m.From), append(becomes, m.To)
	}
	return partitions, fences, was, becomes
}

func partitionsOf(ctx context.Context, db Database, sql string, args ...any) ([]int16, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int16])
}

const recordFailureSQL = `WITH mine AS MATERIALIZED (
 SELECT c.partition, c.fence FROM relay_cursors c JOIN unnest($1::smallint[], $2::bigint[]) m (partition, fence) USING (partition, fence)
 ORDER BY c.partition FOR UPDATE OF c
) UPDATE relay_cursors c SET attempts = attempts + 1, last_error = $3, last_attempt_at = now() FROM mine
 WHERE c.partition = mine.partition AND c.fence = mine.fence`

// RecordFailure records on leased cursors why they could not move.
func RecordFailure(ctx context.Context, db Database, stopped []Lease, reason string) error {
	partitions, fences := columns(stopped)
	_, err := db.Exec(ctx, recordFailureSQL, partitions, fences, reason)
	return err
}

// The new fence ends a lease: the steps of its holder are refused, and its renewal
// fails. furthest keeps records that are published again from counting as a backlog of
// ingestion.
const rewindSQL = `UPDATE relay_cursors c SET furthest = greatest(c.furthest, c.position), position = n.becomes, fence = c.fence + 1,
 owner = NULL, lease_until = '-infinity', attempts = 0, last_error = NULL
 FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) n (partition, was, becomes)
 WHERE c.partition = n.partition AND c.position = n.was AND n.becomes < n.was`

// Rewind moves cursors back, each from where it was read. The caller holds the cursors' locks.
func Rewind(ctx context.Context, tx pgx.Tx, steps []events.ReplayStep) error {
	var partitions []int16
	var was, becomes []int64
	for _, s := range steps {
		partitions, was, becomes = append(partitions, s.Partition), append(was, s.From), append(becomes, s.To)
	}
	tag, err := tx.Exec(ctx, rewindSQL, partitions, was, becomes)
	if err != nil {
		return fmt.Errorf("moving the relay back: %w", err)
	}
	if tag.RowsAffected() != int64(len(steps)) {
		return fmt.Errorf("moving the relay back: %d of %d cursors were where they were read", tag.RowsAffected(), len(steps))
	}
	return nil
}

// Statements returns the SQL that a relay runs for each batch, in sessions that cache plans: a plan must
// not depend on the tables' contents when it is made.
func Statements() map[string]string { return map[string]string{"move": moveSQL} }
