// Package recent caches the newest committed events of a process, for its consumers and its relay. The cache may
// miss any event; the log in the database has all of them.
package recent

import (
	"slices"
	"sync"

	"github.com/meterplex/meterplex/events"
)

// Cache holds the newest committed events of this process for its consumers and its relay, which then do not read them from the
// database. It may miss any event, and a missing one is noticed: positions are dense, and each event names the one before
// it on its topic. Then the stretch is read from the database. A nil Cache holds no events.
type Cache struct {
	readers []*Reader // complete before the first event

	mu         sync.Mutex
	partitions [events.Partitions]partition
	bytes      int // of all events
	// passed is the entry of an event that no reader wants.
	passed events.Envelope
	filled chan struct{}
}

// partition holds the newest events of a partition of the log.
type partition struct {
	epoch int32
	first int64              // position of the first entry
	queue []*events.Envelope // by position, without gaps; nil: the event is missing
	bytes int
}

// end is the position of the last entry.
func (p *partition) end() int64 { return p.first + int64(len(p.queue)) - 1 }

// Reader is a reader of a Cache: a consumer of a topic or of some subjects of the log, or the relay, which reads all events of
// the partitions that it leases.
type Reader struct {
	of    *Cache
	topic events.Topic // of a consumer of a topic
	relay bool
	wants []events.Subject // of a consumer of the log
	at    [events.Partitions]progress
	ready chan struct{}
}

// progress is how far a reader has come in a partition.
type progress struct {
	after int64 // the position that the reader has reached: no earlier event is needed
	// A consumer of a topic, and the relay, get events only while they follow the partition.
	follows bool
	upTo    int64 // the events of its topic up to here are held without a gap
	newest  int64 // its newest event
	fence   int64 // of the relay's lease
}

const (
	// maxBytes bounds the memory of a Cache: 0.7 s of the events that two cores can record.
	maxBytes = 24 << 20
	// eventBytes is the memory of an event without its payload.
	eventBytes = 500
	// entryBytes is the memory of an entry, also of one without an event.
	entryBytes = 8
	// maxGap is by how many positions an event may be ahead of the last one: those between come later, if their
	// commits were earlier, or never, if another process appended them.
	maxGap = 1000
)

// New returns a cache without events and readers.
func New() *Cache { return &Cache{filled: make(chan struct{}, 1)} }

// Reader adds a reader of the events of a topic, or of some subjects of the log if topic is 0. All readers are added before the first
// event.
func (c *Cache) Reader(topic events.Topic, wants []events.Subject) *Reader {
	reader := &Reader{of: c, topic: topic, wants: wants, ready: make(chan struct{}, 1)}
	c.readers = append(c.readers, reader)
	return reader
}

// Relay adds the relay of this process as a reader.
func (c *Cache) Relay() *Reader {
	reader := &Reader{of: c, relay: true}
	c.readers = append(c.readers, reader)
	return reader
}

// Filled hints that half of the memory is used: a reader that waits should read now.
func (c *Cache) Filled() <-chan struct{} { return c.filled }

// HasReaders reports whether there is a reader: without one, events use no memory.
func (c *Cache) HasReaders() bool { return c != nil && len(c.readers) > 0 }

// Put offers committed events, and returns of how many a consumer of their topic is notified. Each has memory of its own: a part of a
// larger list would keep all of it.
func (c *Cache) Put(list []*events.Envelope) (notified int) {
	for _, e := range list {
		if c.Offer(e.RecordPosition(), e.Subject.Topic(), e.Subject, func() *events.Envelope { return e }) {
			notified++
		}
	}
	return notified
}

// Offer holds a committed event, if a reader wants it; its position, in any case. The event is made only if it is
// held, before Offer returns. Events may be offered in another order than that of the log. It reports whether a consumer of the event's
// topic is notified of it here.
func (c *Cache) Offer(at events.RecordPosition, topic events.Topic, subject events.Subject, event func() *events.Envelope) (notified bool) {
	if !c.HasReaders() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &c.partitions[at.Position.Partition]
	if at.Epoch < p.epoch {
		return false
	}
	if at.Epoch > p.epoch {
		c.begin(at.Position.Partition, at.Epoch)
	}
	if i := at.Position.Number - p.first; i > int64(len(p.queue))+maxGap {
		c.drop(p, len(p.queue))
		p.first = at.Position.Number
	}
	i := int(at.Position.Number - p.first)
	if i < 0 || i < len(p.queue) && p.queue[i] != nil {
		return false
	}
	for i >= len(p.queue) {
		p.queue = append(p.queue, nil)
		c.grow(p, entryBytes)
	}
	p.queue[i] = &c.passed
	if slices.ContainsFunc(c.readers, func(reader *Reader) bool { return reader.needs(at.Position, topic, subject) }) {
		p.queue[i] = event()
		c.grow(p, memoryOf(p.queue[i]))
		for _, reader := range c.readers {
			if reader.topic != 0 && reader.topic == topic {
				notified = reader.notify(p, at) || notified
			}
		}
	}
	if c.bytes > maxBytes {
		c.shrink()
	}
	return notified
}

// begin begins an epoch of a partition, in which positions of before may name other events.
func (c *Cache) begin(partition int16, epoch int32) {
	p := &c.partitions[partition]
	c.drop(p, len(p.queue))
	p.epoch, p.first = epoch, 0
	for _, reader := range c.readers {
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

func (l *progress) leave() { l.follows, l.upTo, l.newest, l.fence = false, 0, 0, 0 }

// notify notes a new event of the reader's topic, and reports whether it follows those that the consumer has reached or is notified of.
func (r *Reader) notify(p *partition, at events.RecordPosition) bool {
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
func (r *Reader) extend(p *partition, l *progress) {
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
	p, l := &of.partitions[to.Partition], &r.at[to.Partition]
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
	return l.follows && at.Epoch == r.of.partitions[at.Position.Partition].epoch && at.Position.Number <= l.after
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
func memoryOf(e *events.Envelope) int { return eventBytes + len(e.Payload) }

// Follow lets the relay take the events of a partition from now on, if the fence of its lease is not 0. Head and epoch were read under
// that lease. Under another lease than before it takes no event up to the head: a relay that had the lease meanwhile may have withheld it.
func (r *Reader) Follow(partition int16, fence int64, epoch int32, head int64) {
	of := r.of
	of.mu.Lock()
	defer of.mu.Unlock()
	p, l := &of.partitions[partition], &r.at[partition]
	if l.fence == fence || fence != 0 && epoch < p.epoch {
		return
	}
	if fence != 0 && epoch > p.epoch {
		of.begin(partition, epoch)
	}
	*l = progress{after: head, follows: fence != 0, fence: fence}
	of.tidy(partition)
}

// Take returns the events of the stretch (after, upTo] for the relay under a lease, up to the first that is missing, and up to
// about room bytes of payloads. If it returns no event, the caller reads the stretch from the database. It returns no event of a position
// twice, nor one after which it was asked, so an event that is read again comes with its marks (see readColumns).
func (r *Reader) Take(partition int16, fence, after, upTo int64, room int) (taken []*events.Envelope) {
	of := r.of
	of.mu.Lock()
	defer of.mu.Unlock()
	p, l := &of.partitions[partition], &r.at[partition]
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
func (c *Cache) grow(p *partition, bytes int) {
	if c.bytes <= maxBytes/2 && c.bytes+bytes > maxBytes/2 {
		select {
		case c.filled <- struct{}{}:
		default:
		}
	}
	p.bytes, c.bytes = p.bytes+bytes, c.bytes+bytes
}

// shrink drops the older half of the partition that uses most memory.
func (c *Cache) shrink() {
	most := &c.partitions[0]
	for i := range c.partitions {
		if c.partitions[i].bytes > most.bytes {
			most = &c.partitions[i]
		}
	}
	c.drop(most, (len(most.queue)+1)/2)
}

// drop drops the first entries of a partition. An event of an earlier commit may still come after them.
func (c *Cache) drop(p *partition, n int) {
	for _, e := range p.queue[:n] {
		bytes := entryBytes
		if e != nil && e != &c.passed {
			bytes += memoryOf(e)
		}
		p.bytes, c.bytes = p.bytes-bytes, c.bytes-bytes
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
	p := &of.partitions[s.Partition]
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
func (r *Reader) dense(list []events.Envelope, p *partition, s events.Stretch, limit int) (_ []events.Envelope, ok bool) {
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
func (r *Reader) chain(list []events.Envelope, p *partition, s events.Stretch, limit int) (_ []events.Envelope, ok bool) {
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
func (c *Cache) tidy(partition int16) {
	p := &c.partitions[partition]
	least := p.end()
	for _, reader := range c.readers {
		if l := &reader.at[partition]; reader.ofLog() || l.follows && (reader.relay || l.newest > l.after) {
			least = min(least, l.after)
		}
	}
	if least >= p.first {
		c.drop(p, int(least-p.first+1))
	}
}
