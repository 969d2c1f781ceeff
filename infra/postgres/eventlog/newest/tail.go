package newest

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/meterplex/meterplex/events"
)

// Tail holds the newest committed events of this process for its relay, which then does not read them from
// the database. It is a cache that may miss any event: the relay reads all others from the database. Each event is
// given out at most once, so that an event that is read again comes with its marks (see readColumns).
//
// It holds events only of followed partitions, and only those behind the head at which the partition was
// followed, in the epoch of that head. A nil Tail holds no events.
type Tail struct {
	following atomic.Bool // a partition is followed

	mu    sync.Mutex
	parts [events.Partitions]tailPart
	bytes int // of all events
}

// tailPart is the state of a partition.
type tailPart struct {
	fence int64 // of the lease; 0: not followed
	epoch int32
	after int64              // no event up to this position is accepted any more
	queue []*events.Envelope // by position
	bytes int
	full  bool // no event is accepted until the queue is empty, so that the events in it follow each other
}

const (
	// maxTail bounds the memory of a tail: 0.5 s of the events that two cores can record.
	maxTail = 16 << 20
	// maxTailPart bounds the memory of one partition, which may be unable to publish.
	maxTailPart = maxTail / 4
)

// NewTail returns a tail without events.
func NewTail() *Tail { return &Tail{} }

// Follow holds the events of a partition from now on, if the fence of its lease is not 0. Head and epoch were
// read under that lease. If the fence has changed, the events that are held are dropped first.
func (t *Tail) Follow(partition int16, fence int64, epoch int32, head int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.parts[partition]
	if p.fence == fence {
		return
	}
	t.bytes -= p.bytes
	*p = tailPart{fence: fence, epoch: epoch, after: head}
	t.following.Store(slices.ContainsFunc(t.parts[:], func(p tailPart) bool { return p.fence != 0 }))
}

// Followed reports whether a partition is followed: without a relay, events use no memory.
func (t *Tail) Followed() bool { return t != nil && t.following.Load() }

// Offer holds a committed event if its partition is followed and there is room. The event is made only if it
// is held, before Offer returns. Events may be offered in another order than that of the log.
func (t *Tail) Offer(at events.Place, event func() *events.Envelope) {
	if !t.Followed() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.parts[at.Position.Partition]
	if p.fence == 0 || at.Epoch != p.epoch || at.Position.Number <= p.after {
		return
	}
	if p.bytes >= maxTailPart || t.bytes >= maxTail {
		p.full = len(p.queue) > 0
		return
	}
	if p.full {
		return
	}
	i := len(p.queue)
	for i > 0 && p.queue[i-1].Position.Number >= at.Position.Number {
		i--
	}
	e := event()
	p.queue = slices.Insert(p.queue, i, e)
	p.bytes += memoryOf(e)
	t.bytes += memoryOf(e)
}

// Put offers committed events.
func (t *Tail) Put(list []*events.Envelope) { Events{Tail: t}.Put(list) }

// Take removes and returns the events of the stretch (after, upTo] under a lease, up to the first that is missing,
// and up to about room bytes of payloads. The tail never returns an event up to the last of them again. If it returns
// none, the caller reads the stretch from the database, and the tail never returns an event of it.
func (t *Tail) Take(partition int16, fence, after, upTo int64, room int) (taken []*events.Envelope) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.parts[partition]
	if p.fence != fence {
		return nil
	}
	t.drop(p, after)
	n := 0
	for ; n < len(p.queue) && p.queue[n].Position.Number == after+int64(n)+1 && after+int64(n) < upTo; n++ {
		if room <= 0 {
			break
		}
		room -= len(p.queue[n].Payload)
	}
	if n > 0 {
		upTo = after + int64(n)
	}
	taken = append(taken, p.queue[:n]...)
	t.drop(p, upTo)
	return taken
}

// drop removes the events up to a position, and refuses them from then on.
func (t *Tail) drop(p *tailPart, upTo int64) {
	n := 0
	for ; n < len(p.queue) && p.queue[n].Position.Number <= upTo; n++ {
		size := memoryOf(p.queue[n])
		p.bytes, t.bytes = p.bytes-size, t.bytes-size
	}
	clear(p.queue[:n])
	p.queue, p.after = p.queue[n:], max(p.after, upTo)
	if len(p.queue) == 0 {
		p.queue, p.full = nil, false
	}
}
