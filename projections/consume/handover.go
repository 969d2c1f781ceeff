package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// Handover passes events that this process has committed to a consumer of the same process, which then does
// not wait for the pipe. It holds the newest events of each partition, in the order of their topic, while the
// pipe delivers the partition to this process, and gives them out when they follow the position that the
// consumer has reached. All other events are left to the pipe, which delivers the handed ones again: the
// consumer drops them unread.
//
// A Handover is a hint, never a source of data: the checkpoint decides which events are folded, and events that a failure
// loses here come by the pipe.
type Handover struct {
	ready chan struct{}

	mu         sync.Mutex
	partitions [events.Partitions]partitionQueue
	waiting    int // events in all queues
}

// partitionQueue holds the events of one partition that wait for the consumer, and its progress.
type partitionQueue struct {
	epoch   int32 // of the event that was reached last
	reached int64 // by the last commit of this process; 0: no commit
	last    int64 // last event of the queue, or that was polled from it; 0: no event
	polled  int64 // last event that was polled from the queue and not left to the pipe since; 0: no event
	queue   []*events.Envelope
	piped   time.Time // when the pipe delivered a record of the partition last
	pipedTo int64     // greatest position of the epoch that the pipe has delivered
}

// follows reports whether the queue begins behind the position that was reached.
func (l *partitionQueue) follows() bool { return len(l.queue) > 0 && l.queue[0].Previous <= l.reached }

// willFollow reports whether it does, or will once the polled events are folded.
func (l *partitionQueue) willFollow() bool {
	return l.follows() || len(l.queue) > 0 && l.queue[0].Previous <= l.polled
}

const (
	// maxHanded bounds the events that wait for one consumer.
	maxHanded = 4000
	// maxBehind is by how many positions of a partition a consumer may be behind the events that wait for
	// it. It works off a longer backlog from the pipe.
	maxBehind = 1000
	// pipedWithin is how long after a record the pipe is assumed to deliver its partition here. Within it a
	// group moves the partitions of a member that died.
	pipedWithin = 10 * time.Second
)

// NewHandover returns a handover to one consumer.
func NewHandover() *Handover { return &Handover{ready: make(chan struct{}, 1)} }

// Ready hints that events wait.
func (h *Handover) Ready() <-chan struct{} { return h.ready }

func (h *Handover) hint() {
	select {
	case h.ready <- struct{}{}:
	default:
	}
}

// Offer holds a committed event for the consumer, and reports whether it can be folded without the pipe. The
// event is made only if it is held, before Offer returns. An event that does not follow the one offered
// before in its partition takes the place of the events that wait.
func (h *Handover) Offer(at events.Place, now time.Time, event func() *events.Envelope) (held bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.partitions[at.Position.Partition]
	if at.Previous != l.last {
		h.drop(l)
	}
	far := at.Position.Number-l.reached > maxBehind || h.waiting >= maxHanded
	if far || l.reached == 0 || at.Epoch != l.epoch || now.Sub(l.piped) > pipedWithin {
		h.drop(l)
		return false
	}
	l.queue, l.last = append(l.queue, event()), at.Position.Number
	h.waiting++
	if l.follows() {
		h.hint()
	}
	return l.willFollow()
}

// drop leaves the waiting events of a partition to the pipe.
func (h *Handover) drop(l *partitionQueue) {
	h.waiting -= len(l.queue)
	clear(l.queue)
	l.queue, l.last = l.queue[:0], 0
}

// Handovers are the handovers of a process, by the topics of their consumers.
type Handovers map[events.Topic]*Handover

// Offer is Handover.Offer for an event of a topic.
func (h Handovers) Offer(topic events.Topic, at events.Place, now time.Time, event func() *events.Envelope) (held bool) {
	to := h[topic]
	return to != nil && to.Offer(at, now, event)
}

// Pass offers committed events, and returns how many of them are held.
func (h Handovers) Pass(list []*events.Envelope) (held int) {
	now := time.Now()
	for _, e := range list {
		if h.Offer(e.Subject.Topic(), e.Place(), now, func() *events.Envelope { return e }) {
			held++
		}
	}
	return held
}

// poll removes the events that follow the position reached in their partition, at most limit, and at most
// each of a partition.
func (h *Handover) poll(limit, each int) (polled []*events.Envelope) {
	h.mu.Lock()
	defer h.mu.Unlock()
	more := false
	for p := range h.partitions {
		l := &h.partitions[p]
		if !l.follows() {
			continue
		}
		n := min(len(l.queue), limit-len(polled), each)
		polled = append(polled, l.queue[:n]...)
		if n > 0 {
			l.polled = l.queue[n-1].Position.Number
		}
		l.queue = slices.Delete(l.queue, 0, n)
		h.waiting -= n
		more = more || l.follows()
	}
	if more {
		h.hint()
	}
	return polled
}

// reach notes that a commit of this process moved the consumer to a position, of an epoch.
func (h *Handover) reach(to events.Position, epoch int32) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.partitions[to.Partition]
	if l.epoch != epoch {
		h.drop(l)
		l.pipedTo = 0
	}
	l.epoch, l.reached = epoch, to.Number
	n := 0
	for n < len(l.queue) && l.queue[n].Position.Number <= to.Number {
		n++
	}
	l.queue = slices.Delete(l.queue, 0, n)
	h.waiting -= n
	if l.follows() {
		h.hint()
	}
}

// forget leaves partitions to the pipe: a transaction failed, or its outcome is unknown.
func (h *Handover) forget(runs []*partitionRun) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range runs {
		l := &h.partitions[r.partition]
		h.drop(l)
		l.polled = 0
	}
}

// passed reports whether the consumer has folded a record of the pipe: this process committed this or a later
// position of the same epoch. Again says that the pipe has delivered such a record before. It notes that the
// pipe delivers the partition here.
func (h *Handover) passed(at events.Place, log uuid.UUID, now time.Time) (passed, again bool) {
	if h == nil || at.Log != log {
		return false, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.partitions[at.Position.Partition]
	l.piped = now
	if at.Epoch != l.epoch {
		return false, false
	}
	again = at.Position.Number <= l.pipedTo
	l.pipedTo = max(l.pipedTo, at.Position.Number)
	return at.Position.Number <= l.reached, again
}

// delivered returns those of some partitions that the pipe delivers to this process.
func (h *Handover) delivered(partitions []int16, now time.Time) (here []int16) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range partitions {
		if l := &h.partitions[p]; l.reached > 0 && now.Sub(l.piped) <= pipedWithin {
			here = append(here, p)
		}
	}
	return here
}

// errLeft leaves events that were handed over to the pipe: a dead letter names the place on the topic.
var errLeft = errors.New("an event that was handed over cannot be folded; the pipe delivers it again")

// ProcessHanded folds the events that were handed over, and returns their number. After an error they are
// left to the pipe.
func (r *Runner) ProcessHanded(ctx context.Context) (n int, err error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	runs := r.handedRuns()
	all := slices.Clone(runs)
	for len(runs) > 0 {
		began := time.Now()
		done, err := r.transact(ctx, runs, mode{handed: true})
		if err != nil {
			r.Handed.forget(all)
		}
		if errors.Is(err, errLeft) || errors.Is(err, errMoved) || ofData(err) {
			return n, nil
		}
		r.observeEnd(done, began, err)
		applied := len(done.Applied)
		r.reuse(done.Applied)
		if err != nil {
			return n, fmt.Errorf("consume as %s: %w", r.Consumer.Name, err)
		}
		n += applied
		runs = remaining(runs)
	}
	return n, nil
}

// handedRuns takes the waiting events, sorted into runs.
func (r *Runner) handedRuns() (runs []*partitionRun) {
	polled := r.Handed.poll(r.Consumer.Bound(), r.Consumer.MaxPerPartition)
	for i, e := range polled {
		if len(runs) == 0 || runs[len(runs)-1].partition != e.Position.Partition {
			end := i + 1
			for end < len(polled) && polled[end].Position.Partition == e.Position.Partition {
				end++
			}
			runs = append(runs, &partitionRun{partition: e.Position.Partition, items: make([]item, 0, end-i)})
		}
		l := runs[len(runs)-1]
		l.items = append(l.items, item{place: e.Place(), event: e, offset: -1})
	}
	return runs
}
