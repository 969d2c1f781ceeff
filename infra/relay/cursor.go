package relay

import (
	"context"
	"sync"
	"time"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/infra/relay/cursors"
)

// cursorMove moves a partition's cursor from span.after to target.
type cursorMove struct {
	span
	target int64
}

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
		if !loop.Sleep(ctx, pauses.Jittered(try, s.Jitter)) {
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
	to, publications := movesOf(moves), publicationsOf(runs)
	moved, err := cursors.Advance(ctx, s.Pool, to, publications)
	if err != nil {
		return err
	}
	remove(lost, moved)
	if len(lost) == 0 {
		return nil
	}
	if moved, err = cursors.Moved(ctx, s.Pool, to); err != nil {
		return err
	}
	remove(lost, moved)
	return nil
}

func remove(lost map[int16]bool, moved []int16) {
	for _, p := range moved {
		delete(lost, p)
	}
}

func movesOf(moves []cursorMove) (all []cursors.Move) {
	for _, m := range moves {
		all = append(all, cursors.Move{Lease: cursors.Lease{Partition: m.partition, Fence: m.fence}, From: m.after, To: m.target})
	}
	return all
}

func publicationsOf(runs []run) (all []cursors.Publication) {
	for _, r := range runs {
		all = append(all, r.Publication)
	}
	return all
}

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
	if err := cursors.RecordFailure(ctx, s.Pool, leasesOf(stopped), reason); err != nil {
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
