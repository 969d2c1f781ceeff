package eventlog

import (
	"runtime"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// smallRows is the largest submission, in events, that goes through the shared writer.
// A commit costs about the same for one row as for a few dozen, so small submissions
// of all partitions share it. Large submissions are worth a commit of their own, and
// would delay the small ones.
const smallRows = 16

// ownWriter returns the writer of a tenant's partition. The locks of the heads keep
// partitions in order, not the choice of writer.
func (l *Log) ownWriter(tenant uuid.UUID) *writer {
	return l.writers[int(events.PartitionOf(tenant))%len(l.writers)]
}

// After a group of at least largeGroup events, the answered clients are about to send
// again: the next group waits for as many events, for linger at most. A single caller,
// or one among few, never waits.
const (
	largeGroup = 16
	linger     = time.Millisecond
)

// lingering starts the timer that ends the wait for a large group; nil without a wait.
func (w *writer) lingering() (ends <-chan time.Time, stop func() bool) {
	if !w.shared || w.last < largeGroup {
		return nil, func() bool { return false }
	}
	t := time.NewTimer(linger)
	return t.C, t.Stop
}

// next returns another submission for a group that has rows already, or nil if the
// group is complete. With an empty queue, the shared writer first yields to goroutines
// that are about to submit. Without any, that takes no time.
func (w *writer) next(rows int, patience <-chan time.Time) *submission {
	if w.shared && len(w.queue) == 0 {
		runtime.Gosched()
	}
	select {
	case s := <-w.queue:
		return s
	default:
	}
	if patience == nil || rows >= w.last {
		return nil
	}
	select {
	case s := <-w.queue:
		return s
	case <-patience:
		return nil
	}
}

// removeLocked removes and returns the submissions whose heads another session has locked, so
// that they do not delay the rest of the group.
func (g *group) removeLocked(hs heads) (left []*submission) {
	var kept []*submission
	for _, s := range g.subs {
		if hs[events.PartitionOf(s.tenant)] == nil {
			left = append(left, s)
		} else {
			kept = append(kept, s)
		}
	}
	g.fill(kept)
	return left
}

// passOn hands submissions to the writers of their partitions, which wait for heads.
// It must not block, since its caller holds locks on heads: if a queue is full, its
// submissions become stuck, and first offers them again.
func (w *writer) passOn(left []*submission) {
	left, w.stuck = append(w.stuck, left...), nil
	for _, s := range left {
		own := w.log.ownWriter(s.tenant)
		before := s.load
		// In this order: after the send, the other writer may answer it and count it out.
		before.remove(s)
		own.load.add(s)
		select {
		case own.queue <- s:
		default:
			own.load.remove(s)
			before.add(s)
			w.stuck = append(w.stuck, s)
		}
	}
}

// stuckPause is how long a stuck submission waits for the next try. The writer of the
// full queue takes thousands at a time, or waits seconds for a head.
const stuckPause = 5 * time.Millisecond

// first waits for a submission, and meanwhile offers the stuck ones. It returns false
// when the queue is closed and no submission is stuck.
func (w *writer) first() (s *submission, ok bool) {
	queue := w.queue
	for len(w.stuck) > 0 {
		select {
		case s, ok := <-queue:
			if ok {
				return s, true
			}
			queue = nil // closed
		case <-time.After(stuckPause):
			w.offer()
		}
	}
	s, ok = <-w.queue
	return s, ok
}

// offer passes on the stuck submissions, at most once per stuckPause.
func (w *writer) offer() {
	if len(w.stuck) > 0 && time.Since(w.offered) >= stuckPause {
		w.offered = time.Now()
		w.passOn(nil)
	}
}
