package relay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// step is a partition's cursor on its way from span.after to a position.
type step struct {
	span
	becomes int64
}

// One statement, so one transaction and one round trip. The cursors are locked in
// ascending order first; the comparison is made again on the locked rows. What is
// published again, after the cursor went back, lies where it was published last.
// A restored cursor may have the fence and position of a batch that was read before the
// database lost a tail: no cursor moves in another life of the server, or beyond the head.
const stepSQL = `WITH mine AS MATERIALIZED (
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

// A step that was not answered may have been made: then the cursor stands where
// it was to go, under our fence, and nobody else can have put it there.
const standSQL = `SELECT c.partition FROM relay_cursors c
 JOIN unnest($1::smallint[], $2::bigint[], $3::bigint[]) s (partition, fence, becomes) USING (partition, fence)
 WHERE c.position = s.becomes`

// stepTimeout bounds one try; a try that was not answered is made again.
const stepTimeout = 5 * time.Second

// move makes the steps and names the partitions where it could not: the lease was
// taken by another, or the relay is being stopped while the database is away.
func (s *Subscriber) move(ctx context.Context, steps []step, runs []run) map[int16]bool {
	lost := map[int16]bool{}
	for _, st := range steps {
		lost[st.partition] = true
	}
	for try := 1; len(lost) > 0; try++ {
		err := s.tryMove(ctx, steps, runs, lost)
		if err == nil {
			break
		}
		s.complain(ctx, "the relay's cursors cannot be moved", err)
		if !sleep(ctx, pauseAfter(try, s.Jitter)) {
			break
		}
	}
	if len(lost) > 0 {
		s.Logger.WarnContext(ctx, "cursors were not moved; the records will be sent again by whoever holds the partitions", "partitions", len(lost))
	}
	return lost
}

func (s *Subscriber) tryMove(ctx context.Context, steps []step, runs []run, lost map[int16]bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	args := stepArgs(steps, runs)
	if err := s.drop(ctx, lost, stepSQL, args...); err != nil {
		return fmt.Errorf("moving cursors: %w", err)
	}
	if len(lost) == 0 {
		return nil
	}
	if err := s.drop(ctx, lost, standSQL, args[0], args[1], args[3]); err != nil {
		return fmt.Errorf("looking where cursors stand: %w", err)
	}
	return nil
}

// drop takes out of lost what a query names.
func (s *Subscriber) drop(ctx context.Context, lost map[int16]bool, sql string, args ...any) error {
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

func stepArgs(steps []step, runs []run) []any {
	var (
		partitions, runPartitions, topics       []int16
		fences, was, becomes, from, to, offsets []int64
	)
	for _, st := range steps {
		partitions, fences = append(partitions, st.partition), append(fences, st.fence)
		was, becomes = append(was, st.after), append(becomes, st.becomes)
	}
	for _, r := range runs {
		runPartitions, topics = append(runPartitions, r.partition), append(topics, int16(r.topic))
		from, to, offsets = append(from, r.from), append(to, r.to), append(offsets, r.offset)
	}
	return []any{partitions, fences, was, becomes, runPartitions, topics, from, to, offsets}
}

const noteSQL = `WITH mine AS MATERIALIZED (
 SELECT c.partition, c.fence FROM relay_cursors c JOIN unnest($1::smallint[], $2::bigint[]) m (partition, fence) USING (partition, fence)
 ORDER BY c.partition FOR UPDATE OF c
) UPDATE relay_cursors c SET attempts = attempts + 1, last_error = $3, last_attempt_at = now() FROM mine
 WHERE c.partition = mine.partition AND c.fence = mine.fence`

// noteFailure shows on the cursors that a batch, or a part of it, could not be
// published: at most once a second, and without a complaint if it cannot be done.
func (s *Subscriber) noteFailure(ctx context.Context, b *batch) {
	var stopped []span
	reason := "the batch was refused by its handler"
	for i := range b.parts {
		if _, err, _ := b.reached(i); err != nil {
			stopped, reason = append(stopped, b.parts[i].span), bounded(err.Error())
		} else if b.result == nil {
			stopped = append(stopped, b.parts[i].span)
		}
	}
	if len(stopped) == 0 || !s.notes.due() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	partitions, fences := columns(stopped)
	if _, err := s.Pool.Exec(ctx, noteSQL, partitions, fences, reason); err != nil {
		s.complain(ctx, "a failed publish cannot be noted", err)
	}
}

// everySecond lets something happen at most once a second.
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
