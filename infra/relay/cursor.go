package relay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// cursorMove moves a partition's cursor from span.after to target.
type cursorMove struct {
	span
	target int64
}

// moveSQL moves cursors in one transaction and one round trip. It locks the cursors in ascending order
// first, and compares again on the locked rows. A publication after the cursor moved back overwrites the
// earlier place of the record. A restored cursor may have the fence and position of a batch that was read
// before the database lost a tail. Therefore no cursor moves in another life of the server, or beyond the
// head.
const moveSQL = `WITH mine AS MATERIALIZED (
 SELECT c.partition, s.fence, s.was, s.becomes
 FROM relay_cursors c JOIN log_heads h USING (partition) JOIN unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[]) s (partition, fence, was, becomes) USING (partition)
 WHERE c.fence = s.fence AND c.position = s.was AND h.position >= s.becomes AND is_server_life(h.timeline, h.started_at) ORDER BY c.partition FOR UPDATE OF c
), stepped AS (
 UPDATE relay_cursors c SET position = mine.becomes, attempts = 0, last_error = NULL FROM mine
 WHERE c.partition = mine.partition AND c.fence = mine.fence AND c.position = mine.was RETURNING c.partition
), kept AS (
 INSERT INTO outbox_publications (partition, topic, from_position, to_position, base_offset)
 SELECT r.* FROM unnest($5::smallint[], $6::smallint[], $7::bigint[], $8::bigint[], $9::bigint[]) r (partition, topic, from_position, to_position, base_offset)
 JOIN stepped USING (partition) ON CONFLICT (partition, topic, from_position)
 DO UPDATE SET to_position = excluded.to_position, base_offset = excluded.base_offset, published_at = now()
) SELECT partition FROM stepped`

// movedSQL finds moves that were committed without an answer: the cursor is at its target under our
// fence, and no other instance can have put it there.
const movedSQL = `SELECT c.partition FROM relay_cursors c
 JOIN unnest($1::smallint[], $2::bigint[], $3::bigint[]) s (partition, fence, becomes) USING (partition, fence)
 WHERE c.position = s.becomes`

// moveTimeout bounds one try. A try without an answer is repeated.
const moveTimeout = 5 * time.Second

// move moves the cursors and returns the partitions where it failed: the lease was lost, or the relay is
// stopping while the database is unreachable.
func (s *Subscriber) move(ctx context.Context, moves []cursorMove, runs []run) map[int16]bool {
	lost := map[int16]bool{}
	for _, m := range moves {
		lost[m.partition] = true
	}
	for try := 1; len(lost) > 0; try++ {
		err := s.tryMove(ctx, moves, runs, lost)
		if err == nil {
			break
		}
		s.logFault(ctx, "cannot move the relay's cursors", err)
		if !sleep(ctx, pauseAfter(try, s.Jitter)) {
			break
		}
	}
	if len(lost) > 0 {
		s.Logger.WarnContext(ctx, "cursors not moved: the next lease holder will publish the records again", "partitions", len(lost))
	}
	return lost
}

func (s *Subscriber) tryMove(ctx context.Context, moves []cursorMove, runs []run, lost map[int16]bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
	defer cancel()
	args := moveArgs(moves, runs)
	if err := s.removeReturned(ctx, lost, moveSQL, args...); err != nil {
		return fmt.Errorf("moving cursors: %w", err)
	}
	if len(lost) == 0 {
		return nil
	}
	if err := s.removeReturned(ctx, lost, movedSQL, args[0], args[1], args[3]); err != nil {
		return fmt.Errorf("checking whether cursors moved: %w", err)
	}
	return nil
}

// removeReturned removes the partitions that a query returns from lost.
func (s *Subscriber) removeReturned(ctx context.Context, lost map[int16]bool, sql string, args ...any) error {
	rows, err := s.Pool.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	moved, err := pgx.CollectRows(rows, pgx.RowTo[int16])
	for _, p := range moved {
		delete(lost, p)
	}
	return err
}

func moveArgs(moves []cursorMove, runs []run) []any {
	var (
		partitions, runPartitions, topics       []int16
		fences, was, becomes, from, to, offsets []int64
	)
	for _, m := range moves {
		partitions, fences = append(partitions, m.partition), append(fences, m.fence)
		was, becomes = append(was, m.after), append(becomes, m.target)
	}
	for _, r := range runs {
		runPartitions, topics = append(runPartitions, r.partition), append(topics, int16(r.topic))
		from, to, offsets = append(from, r.from), append(to, r.to), append(offsets, r.offset)
	}
	return []any{partitions, fences, was, becomes, runPartitions, topics, from, to, offsets}
}

const recordFailureSQL = `WITH mine AS MATERIALIZED (
 SELECT c.partition, c.fence FROM relay_cursors c JOIN unnest($1::smallint[], $2::bigint[]) m (partition, fence) USING (partition, fence)
 ORDER BY c.partition FOR UPDATE OF c
) UPDATE relay_cursors c SET attempts = attempts + 1, last_error = $3, last_attempt_at = now() FROM mine
 WHERE c.partition = mine.partition AND c.fence = mine.fence`

// recordFailure records on the cursors, at most once per second, that a batch or a segment could not be
// published. Its own failure is only logged.
func (s *Subscriber) recordFailure(ctx context.Context, b *batch) {
	var stopped []span
	reason := "the handler refused the batch"
	for i := range b.segments {
		if _, err, _ := b.reached(i); err != nil {
			stopped, reason = append(stopped, b.segments[i].span), bounded(err.Error())
		} else if b.results == nil {
			stopped = append(stopped, b.segments[i].span)
		}
	}
	if len(stopped) == 0 || !s.failureRecords.due() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	partitions, fences := columns(stopped)
	if _, err := s.Pool.Exec(ctx, recordFailureSQL, partitions, fences, reason); err != nil {
		s.logFault(ctx, "cannot record a failed publish", err)
	}
}

// everySecond limits an action to once per second.
type everySecond struct {
	mu   sync.Mutex
	last time.Time
}

func (e *everySecond) due() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.last) < time.Second {
		return false
	}
	e.last = time.Now()
	return true
}
