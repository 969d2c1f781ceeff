// Package newest holds the newest committed events of a process in memory, for its consumers and its relay. It is a cache that may
// miss any event; the log in the database has all of them.
package newest

import (
	"slices"
	"sync"

	"github.com/meterplex/meterplex/events"
)

// Recent holds the newest committed events of this process for its consumers and its relay, which then do not read them from the
// database. It is a cache that may miss any event, and a missing one is noticed: positions are dense, and each event names the one before
// it on its topic. Then the stretch is read from the database. A nil Recent holds no events.
type Recent struct {
	readers []*Reader // complete before the first event

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

// end is the position of the last entry.
func (p *recentPart) end() int64 { return p.first + int64(len(p.queue)) - 1 }

// Reader is a reader of a Recent: a consumer of a topic or of some subjects of the log, or the relay, which reads all events of
// the partitions that it leases.
type Reader struct {
	of    *Recent
	topic events.Topic // of a consumer of a topic
	relay bool
	wants []events.Subject // of a consumer of the log
	at    [events.Partitions]recentPlace
	ready chan struct{}
}

// recentPlace is how far a reader has come in a partition.
type recentPlace struct {
	after int64 // the position that the reader has reached: no earlier event is needed
	// A consumer of a topic, and the relay, get events only while they follow the partition.
	follows bool
	upTo    int64 // the events of its topic up to here are held without a gap
	newest  int64 // its newest event
	fence   int64 // of the relay's lease
}

const (
	// maxRecent bounds the memory of a Recent: 0.7 s of the events that two cores can record.
	maxRecent = 24 << 20
	// heldEvent is the memory of an event without its payload.
	heldEvent = 500
	// recentEntry is the memory of an entry, also of one without an event.
	recentEntry = 8
	// maxRecentGap is by how many positions an event may be ahead of the last one: those between come later, if their
	// commits were earlier, or never, if another process appended them.
	maxRecentGap = 1000
)

// NewRecent returns a Recent without events and readers.
func NewRecent() *Recent { return &Recent{filled: make(chan struct{}, 1)} }

// Reader adds a reader of the events of a topic, or of some subjects of the log if topic is 0. All readers are added before the first
// event.
func (r *Recent) Reader(topic events.Topic, wants []events.Subject) *Reader {
	reader := &Reader{of: r, topic: topic, wants: wants, ready: make(chan struct{}, 1)}
	r.readers = append(r.readers, reader)
	return reader
}

// Relay adds the relay of this process as a reader.
func (r *Recent) Relay() *Reader {
	reader := &Reader{of: r, relay: true}
	r.readers = append(r.readers, reader)
	return reader
}

// Filled hints that half of the memory is used: a reader that waits should read now.
func (r *Recent) Filled() <-chan struct{} { return r.filled }

// HasReaders reports whether there is a reader: without one, events use no memory.
func (r *Recent) HasReaders() bool { return r != nil && len(r.readers) > 0 }

// Put offers committed events, and returns of how many a consumer of their topic is told. Each has memory of its own: a part of a
// larger list would keep all of it.
func (r *Recent) Put(list []*events.Envelope) (told int) {
	for _, e := range list {
		if r.Offer(e.RecordPosition(), e.Subject.Topic(), e.Subject, func() *events.Envelope { return e }) {
			told++
		}
	}
	return told
}

// Offer holds a committed event, if a reader wants it; its position, in any case. The event is made only if it is
// held, before Offer returns. Events may be offered in another order than that of the log. It reports whether a consumer of the event's
// topic is told of it here.
func (r *Recent) Offer(at events.RecordPosition, topic events.Topic, subject events.Subject, event func() *events.Envelope) (told bool) {
	if !r.HasReaders() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.parts[at.Position.Partition]
	if at.Epoch < p.epoch {
		return false
	}
	if at.Epoch > p.epoch {
		r.begin(at.Position.Partition, at.Epoch)
	}
	if i := at.Position.Number - p.first; i > int64(len(p.queue))+maxRecentGap {
		r.drop(p, len(p.queue))
		p.first = at.Position.Number
	}
	i := int(at.Position.Number - p.first)
	if i < 0 || i < len(p.queue) && p.queue[i] != nil {
		return false
	}
	for i >= len(p.queue) {
		p.queue = append(p.queue, nil)
		r.grow(p, recentEntry)
	}
	p.queue[i] = &r.passed
	if slices.ContainsFunc(r.readers, func(reader *Reader) bool { return reader.needs(at.Position, topic, subject) }) {
		p.queue[i] = event()
		r.grow(p, memoryOf(p.queue[i]))
		for _, reader := range r.readers {
			if reader.topic != 0 && reader.topic == topic {
				told = reader.tell(p, at) || told
			}
		}
	}
	if r.bytes > maxRecent {
		r.shrink()
	}
	return told
}

// begin begins an epoch of a partition, in which positions of before may name other events.
func (r *Recent) begin(partition int16, epoch int32) {
	p := &r.parts[partition]
	r.drop(p, len(p.queue))
	p.epoch, p.first = epoch, 0
	for _, reader := range r.readers {
		reader.at[partition].leave()
	}
}

// needs reports whether a reader has to read an event.
func (r *Reader) needs(p events.Position, topic events.Topic, subject events.Subject) bool {
	if r.ofLog() {
		return slices.Contains(r.wants, subject)
	}
	at := &r.at[p.Partition]
	return (r.relay || r.topic == topic) && at.follows && p.Number > at.after
}

// ofLog reports whether the reader is a consumer of the log.
func (r *Reader) ofLog() bool { return r.topic == 0 && !r.relay }

func (l *recentPlace) leave() { l.follows, l.upTo, l.newest, l.fence = false, 0, 0, 0 }

// tell notes a new event of the reader's topic, and reports whether it follows those that the consumer has reached or is told of.
func (r *Reader) tell(p *recentPart, at events.RecordPosition) bool {
	l := &r.at[at.Position.Partition]
	if !l.follows || at.Position.Number <= l.after {
		return false
	}
	l.newest = max(l.newest, at.Position.Number)
	if at.Previous <= l.upTo {
		r.extend(p, l)
	}
	return at.Position.Number <= l.upTo
}

// extend finds the end of the events that follow without a gap, and hints if there are some.
func (r *Reader) extend(p *recentPart, l *recentPlace) {
	for n := max(l.upTo+1, p.first); n <= min(l.newest, p.end()); n++ {
		e := p.queue[n-p.first]
		if e == nil || e == &r.of.passed || e.Subject.Topic() != r.topic {
			continue
		}
		if e.Previous > l.upTo {
			break
		}
		l.upTo = n
	}
	if l.upTo > l.after {
		select {
		case r.ready <- struct{}{}:
		default:
		}
	}
}

// Ready hints that Ahead has positions.
func (r *Reader) Ready() <-chan struct{} { return r.ready }

// Ahead returns, for each partition with new events of the reader's topic, the position up to which they are held.
func (r *Reader) Ahead() (ahead []events.Position) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for p := range r.at {
		if l := &r.at[p]; l.follows && l.upTo > l.after {
			ahead = append(ahead, events.Position{Partition: int16(p), Number: l.upTo})
		}
	}
	return ahead
}

// Reached notes the checkpoint of the consumer in a partition, whose head has this epoch. The consumer follows the partition from then on.
func (r *Reader) Reached(to events.Position, epoch int32) {
	of := r.of
	of.mu.Lock()
	defer of.mu.Unlock()
	p, l := &of.parts[to.Partition], &r.at[to.Partition]
	if epoch < p.epoch {
		return // read before the epoch began
	}
	if epoch > p.epoch {
		of.begin(to.Partition, epoch)
	}
	l.after, l.follows, l.upTo = to.Number, true, max(l.upTo, to.Number)
	if l.newest > l.upTo {
		r.extend(p, l)
	}
	of.tidy(to.Partition)
}

// Passed reports whether the consumer has reached a record's position in its epoch, as far as this process knows.
func (r *Reader) Passed(at events.RecordPosition) bool {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	l := &r.at[at.Position.Partition]
	return l.follows && at.Epoch == r.of.parts[at.Position.Partition].epoch && at.Position.Number <= l.after
}

// Leave ends the hints of a partition until the consumer reaches a position there.
func (r *Reader) Leave(partition int16) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.at[partition].leave()
}

// Follows returns those of some partitions that the consumer follows.
func (r *Reader) Follows(partitions []int16) (followed []int16) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for _, p := range partitions {
		if r.at[p].follows {
			followed = append(followed, p)
		}
	}
	return followed
}

// memoryOf is the memory of an event, in bytes.
func memoryOf(e *events.Envelope) int { return heldEvent + len(e.Payload) }

// Follow lets the relay take the events of a partition from now on, if the fence of its lease is not 0. Head and epoch were read under
// that lease. Under another lease than before it takes none up to the head: the relay that had the lease meanwhile may have withheld it.
func (r *Reader) Follow(partition int16, fence int64, epoch int32, head int64) {
	of := r.of
	of.mu.Lock()
	defer of.mu.Unlock()
	p, l := &of.parts[partition], &r.at[partition]
	if l.fence == fence || fence != 0 && epoch < p.epoch {
		return
	}
	if fence != 0 && epoch > p.epoch {
		of.begin(partition, epoch)
	}
	*l = recentPlace{after: head, follows: fence != 0, fence: fence}
	of.tidy(partition)
}

// Take returns the events of the stretch (after, upTo] for the relay under a lease, up to the first that is missing, and up to
// about room bytes of payloads. If it returns none, the caller reads the stretch from the database. It returns no event of a position
// twice, nor one after which it was asked, so an event that is read again comes with its marks (see readColumns).
func (r *Reader) Take(partition int16, fence, after, upTo int64, room int) (taken []*events.Envelope) {
	of := r.of
	of.mu.Lock()
	defer of.mu.Unlock()
	p, l := &of.parts[partition], &r.at[partition]
	if l.fence != fence {
		return nil
	}
	for n := after + 1; after >= l.after && n >= p.first && n <= min(upTo, p.end()) && room > 0; n++ {
		e := p.queue[n-p.first]
		if e == nil || e == &of.passed {
			break
		}
		taken, room = append(taken, e), room-len(e.Payload)
	}
	if len(taken) > 0 {
		upTo = after + int64(len(taken))
	}
	l.after = max(l.after, upTo)
	of.tidy(partition)
	return taken
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

// drop drops the first entries of a partition. An event of an earlier commit may still come after them.
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
// partition, in the server's present life, and the stretch ends at that head or before it. That of a consumer of a topic ends at one of its
// events.
func (r *Reader) Stretch(list []events.Envelope, s events.Stretch, epoch int32, limit int) (_ []events.Envelope, ok bool) {
	of := r.of
	of.mu.Lock()
	defer of.mu.Unlock()
	p := &of.parts[s.Partition]
	if r.topic == 0 {
		r.at[s.Partition].after = s.After
		of.tidy(s.Partition)
	}
	if epoch != p.epoch {
		return list, false
	}
	if r.topic == 0 {
		return r.dense(list, p, s, limit)
	}
	return r.chain(list, p, s, limit)
}

// dense reads a stretch of the log, in which every position is held.
func (r *Reader) dense(list []events.Envelope, p *recentPart, s events.Stretch, limit int) (_ []events.Envelope, ok bool) {
	from := s.After + 1 - p.first
	if from < 0 || from >= int64(len(p.queue)) {
		return list, false
	}
	wanted := func(e *events.Envelope) bool { return e != &r.of.passed && slices.Contains(r.wants, e.Subject) }
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

// chain reads a stretch of a topic, in which each event follows the one before it.
func (r *Reader) chain(list []events.Envelope, p *recentPart, s events.Stretch, limit int) (_ []events.Envelope, ok bool) {
	was, last := len(list), s.After
	for n := max(s.After+1, p.first); n <= min(s.UpTo, p.end()) && len(list)-was < limit; n++ {
		e := p.queue[n-p.first]
		if e == nil || e == &r.of.passed || e.Subject.Topic() != r.topic {
			continue
		}
		if e.Previous > last {
			return list[:was], false
		}
		list, last = append(list, *e), n
	}
	if last != s.UpTo && len(list)-was < limit {
		return list[:was], false
	}
	return list, true
}

// tidy drops the events of a partition that no reader needs.
func (r *Recent) tidy(partition int16) {
	p := &r.parts[partition]
	least := p.end()
	for _, reader := range r.readers {
		if l := &reader.at[partition]; reader.ofLog() || l.follows && (reader.relay || l.newest > l.after) {
			least = min(least, l.after)
		}
	}
	if least >= p.first {
		r.drop(p, int(least-p.first+1))
	}
}
