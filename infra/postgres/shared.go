package postgres

import (
	"runtime"

	"github.com/meterplex/meterplex/events"
)

// smallRows is how many events a submission may have that goes through the shared
// writer. A commit costs about the same for one row as for some dozen: what is
// small shares it across partitions. What is large pays for itself, and would keep
// the small ones waiting.
const smallRows = 16

// writerOf is who commits a submission: the shared writer, or that of its
// partition. Partitions are kept in order by their heads' locks, not by this.
func (l *Log) writerOf(s *submission) *writer {
	if len(s.batch) <= smallRows {
		return l.shared
	}
	return l.ownWriter(s)
}

func (l *Log) ownWriter(s *submission) *writer {
	return l.writers[int(events.PartitionOf(s.tenant))%len(l.writers)]
}

// waiting tells whether a submission is in the queue. The shared writer lets those
// who are about to submit go first: a turn of what can run now, no timer, nothing
// where nobody is about.
func (w *writer) waiting() bool {
	if len(w.queue) == 0 && w.shared {
		runtime.Gosched()
	}
	return len(w.queue) > 0
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
	*g = *newGroup(g.log, kept)
	return left
}

// passOn gives submissions to the writers of their partitions, which wait for
// heads. It must not wait itself, since it is called with heads locked: what a
// full queue does not take is in the next group.
func (w *writer) passOn(left []*submission) {
	for _, s := range left {
		select {
		case w.log.ownWriter(s).queue <- s:
		default:
			w.carried = append(w.carried, s)
		}
	}
}
