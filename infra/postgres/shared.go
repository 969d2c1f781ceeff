package postgres

import (
	"runtime"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// smallRows is how many events a submission may have that goes through the shared
// writer. A commit costs about the same for one row as for some dozen: what is
// small shares it across partitions. What is large pays for itself, and would keep
// the small ones waiting.
const smallRows = 16

// ownWriter is that of a tenant's partition. Partitions are kept in order by their
// heads' locks, not by this.
func (l *Log) ownWriter(tenant uuid.UUID) *writer {
	return l.writers[int(events.PartitionOf(tenant))%len(l.writers)]
}

// A crowd is so many events in one group that those who are answered are about to
// send again: the next group waits for as many, for linger at most. Who sends alone
// or among few never waits.
const (
	crowd  = 16
	linger = time.Millisecond
)

// patience ends the wait for a crowd, where one is waited for.
func (w *writer) patience() (ends <-chan time.Time, calm func() bool) {
	if !w.shared || w.last < crowd {
		return nil, func() bool { return false }
	}
	t := time.NewTimer(linger)
	return t.C, t.Stop
}

// next gives another submission for a group of so many rows, nil where the group is
// complete. The shared writer lets those who are about to submit go first: a turn
// of what can run now, nothing where nobody is about.
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

// leave takes the submissions out of a group whose heads somebody else has, so
// that one partition's wait is not everybody's.
func (g *group) leave(hs heads) (left []*submission) {
	var kept []*submission
	for _, s := range g.subs {
		if hs[events.PartitionOf(s.tenant)] == nil {
			left = append(left, s)
		} else {
			kept = append(kept, s)
		}
	}
	g.take(kept)
	return left
}

// passOn gives submissions to the writers of their partitions, which wait for
// heads. It must not wait itself, since it is called with heads locked: what a full
// queue does not take is offered to it again from time to time, by first.
func (w *writer) passOn(left []*submission) {
	left, w.stuck = append(w.stuck, left...), nil
	for _, s := range left {
		own := w.log.ownWriter(s.tenant)
		before := s.load
		// First here, then there: what its writer has answered is counted nowhere.
		before.leave(s)
		own.load.add(s)
		select {
		case own.queue <- s:
		default:
			own.load.leave(s)
			before.add(s)
			w.stuck = append(w.stuck, s)
		}
	}
}

// stuckPause is how long what a full queue did not take waits for the next try. The
// queue's writer takes thousands at a time, or waits seconds for a head.
const stuckPause = 5 * time.Millisecond

// first waits for a submission, and meanwhile offers what is stuck. It is over when
// the queue is closed and nothing is stuck.
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

// offer passes on what is stuck, at most once in a pause.
func (w *writer) offer() {
	if len(w.stuck) > 0 && time.Since(w.offered) >= stuckPause {
		w.offered = time.Now()
		w.passOn(nil)
	}
}
