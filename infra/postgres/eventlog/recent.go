package eventlog

import (
	"slices"
	"sync"

	"github.com/meterplex/meterplex/events"
)

// Recent holds the newest committed events of this process for its consumers of the log, which then do not read
// them from the database. It is a cache that may miss any event: positions are dense, so that a missing event is
// noticed, and the stretch is read from the database. A nil Recent holds no events.
type Recent struct {
	readers []*RecentReader // complete before the first event

	mu    sync.Mutex
	parts [events.Partitions]recentPart
	bytes int // of all events
	// passed is the entry of an event that no reader wants.
	passed events.Envelope
	filled chan struct{}
}

// recentPart is the state of a partition.
type recentPart struct {
	epoch int32
	first int64              // position of the first entry
	queue []*events.Envelope // by position, without gaps; nil: the event is missing
	bytes int
}

// RecentReader is a consumer of the log that reads a Recent.
type RecentReader struct {
	of    *Recent
	wants []events.Subject
	after [events.Partitions]int64 // begin of the last stretch: no earlier event is needed
}

const (
	// maxRecent bounds the memory of a Recent.
	maxRecent = 12 << 20
	// recentEntry is the memory of an entry, also of one without an event.
	recentEntry = 8
	// maxRecentGap is by how many positions an event may be ahead of the last one: those between come later, if their
	// commits were earlier, or never, if another process appended them.
	maxRecentGap = 1000
)

// NewRecent returns a Recent without events and readers.
func NewRecent() *Recent { return &Recent{filled: make(chan struct{}, 1)} }

// Reader adds a reader of the events of some subjects. All readers are added before the first event.
func (r *Recent) Reader(wants []events.Subject) *RecentReader {
	reader := &RecentReader{of: r, wants: wants}
	r.readers = append(r.readers, reader)
	return reader
}

// Filled hints that half of the memory is used: a reader that waits should read now.
func (r *Recent) Filled() <-chan struct{} { return r.filled }

// read reports whether there is a reader: without one, events use no memory.
func (r *Recent) read() bool { return r != nil && len(r.readers) > 0 }

// Offer holds a committed event, if a reader wants it; its position, in any case. The event is made only if it is
// held, before Offer returns. Events may be offered in another order than that of the log.
func (r *Recent) Offer(at events.Place, subject events.Subject, event func() *events.Envelope) {
	if !r.read() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.parts[at.Position.Partition]
	if at.Epoch < p.epoch {
		return
	}
	if i := at.Position.Number - p.first; at.Epoch > p.epoch || i > int64(len(p.queue))+maxRecentGap {
		r.drop(p, len(p.queue))
		p.epoch, p.first = at.Epoch, at.Position.Number
	}
	i := int(at.Position.Number - p.first)
	if i < 0 || i < len(p.queue) && p.queue[i] != nil {
		return
	}
	for i >= len(p.queue) {
		p.queue = append(p.queue, nil)
		r.grow(p, recentEntry)
	}
	p.queue[i] = &r.passed
	if slices.ContainsFunc(r.readers, func(reader *RecentReader) bool { return slices.Contains(reader.wants, subject) }) {
		p.queue[i] = event()
		r.grow(p, memoryOf(p.queue[i]))
	}
	if r.bytes > maxRecent {
		r.shrink()
	}
}

// grow counts the memory of a partition.
func (r *Recent) grow(p *recentPart, bytes int) {
	if r.bytes <= maxRecent/2 && r.bytes+bytes > maxRecent/2 {
		select {
		case r.filled <- struct{}{}:
		default:
		}
	}
	p.bytes, r.bytes = p.bytes+bytes, r.bytes+bytes
}

// shrink drops the older half of the partition that uses most memory.
func (r *Recent) shrink() {
	most := &r.parts[0]
	for i := range r.parts {
		if r.parts[i].bytes > most.bytes {
			most = &r.parts[i]
		}
	}
	r.drop(most, (len(most.queue)+1)/2)
}

// drop drops the first entries of a partition. An event of an earlier commit may still come behind them.
func (r *Recent) drop(p *recentPart, n int) {
	for _, e := range p.queue[:n] {
		bytes := recentEntry
		if e != nil && e != &r.passed {
			bytes += memoryOf(e)
		}
		p.bytes, r.bytes = p.bytes-bytes, r.bytes-bytes
	}
	clear(p.queue[:n])
	p.queue, p.first = p.queue[n:], p.first+int64(n)
	if len(p.queue) == 0 {
		p.queue = nil
	}
}

// Stretch appends the events of a stretch that the reader wants to a list, at most limit of them, and reports whether
// all of the stretch up to that limit is held; if not, the list stays as it is. The caller has read the epoch with the head of the
// partition, in the server's present life, and the stretch ends at that head or before it.
func (r *RecentReader) Stretch(list []events.Envelope, s events.Stretch, epoch int32, limit int) (_ []events.Envelope, ok bool) {
	of := r.of
	of.mu.Lock()
	defer of.mu.Unlock()
	p := &of.parts[s.Partition]
	r.after[s.Partition] = s.After
	if least := of.needed(s.Partition); least >= p.first {
		of.drop(p, int(min(least-p.first+1, int64(len(p.queue)))))
	}
	from := s.After + 1 - p.first
	if epoch != p.epoch || from < 0 || from >= int64(len(p.queue)) {
		return list, false
	}
	wanted := func(e *events.Envelope) bool { return e != &of.passed && slices.Contains(r.wants, e.Subject) }
	n, end := 0, from
	for ; n < limit && end < s.UpTo+1-p.first; end++ {
		if end == int64(len(p.queue)) || p.queue[end] == nil {
			return list, false
		}
		if wanted(p.queue[end]) {
			n++
		}
	}
	list = slices.Grow(list, n)
	for _, e := range p.queue[from:end] {
		if wanted(e) {
			list = append(list, *e)
		}
	}
	return list, true
}

// needed returns the position in a partition behind which the readers still need events.
func (r *Recent) needed(partition int16) int64 {
	least := r.readers[0].after[partition]
	for _, reader := range r.readers[1:] {
		least = min(least, reader.after[partition])
	}
	return least
}
