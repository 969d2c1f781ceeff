package simulation

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/recent"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/jsonschema"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/validate"
)

type topicPart struct {
	topic     events.Topic
	partition int16
}

// simPipe is the broker: records by their offsets, and the offsets of groups.
type simPipe struct {
	s       *sim
	records map[topicPart][]events.Record
	stored  map[string]bool     // ids of events
	due     map[string]bool     // to be published again
	last    map[topicPart]int64 // the greatest position
	offsets map[ckptKey]int64
	folded  map[string]bool // events by group and id, whose folds a failover or a restore may have lost
}

func newSimPipe(s *sim) *simPipe {
	return &simPipe{s, map[topicPart][]events.Record{}, map[string]bool{}, map[string]bool{}, map[topicPart]int64{}, map[ckptKey]int64{},
		map[string]bool{}}
}

func (b *simPipe) has(r *simRow) bool { return b.stored[r.id()] && !b.due[r.id()] }

func (r *simRow) id() string { return uuid.UUID(r.values[colEventID]).String() }

// store appends a record, and looks whether the topic keeps the order of the log. A relay that has not looked since a failover
// may publish behind the cursor of the lost log; it cannot move the cursor, so the events are published again.
func (b *simPipe) store(r *events.Record, looked int) {
	at, err := codec.PositionOf(r)
	if err != nil {
		b.s.fail("a record without a position was published: %v", err)
		return
	}
	t := topicPart{r.Topic, r.Partition}
	if !b.s.db.holds(r, at.Position) { // it was read before a failover lost it
		b.s.count("ghost published")
		r.Offset = int64(len(b.records[t]))
		b.records[t] = append(b.records[t], *r)
		return
	}
	late := looked != b.s.life
	if at.Previous > b.last[t] && !late {
		b.s.fail("%s was published to %s before %d was", at.Position, r.Topic.Name(), at.Previous)
	}
	id := string(r.Header(events.HeaderEventID))
	if b.stored[id] {
		b.s.count("published again")
	}
	delete(b.due, id)
	r.Offset = int64(len(b.records[t]))
	b.records[t] = append(b.records[t], *r)
	b.stored[id] = true
	if late {
		b.s.count("published by a relay of an earlier life")
	} else {
		b.last[t] = max(b.last[t], at.Position.Number)
	}
}

// simPublisher is the pipe as the relay of a process sees it.
type simPublisher struct {
	p      *proc
	looked *int // the life of the server in which the relay looked at the heads
}

func (o simPublisher) Close() error { return nil }

func (o simPublisher) Publish(topic string, msgs ...*message.Message) error {
	number, _ := events.TopicOf(topic)
	out, err := watermill.ToPublish(number, msgs, false)
	if err != nil {
		return err
	}
	return o.p.do(&operation{what: fmt.Sprint("produce ", len(out)), kind: kindProduce, effect: func(f opOutcome) error {
		behind := map[topicPart]bool{}
		breaks := -1
		if f == partly {
			breaks = o.p.s.rng.IntN(len(out))
		}
		var failed []watermill.FailedRecord
		for i := range out {
			t := topicPart{out[i].Topic, out[i].Partition}
			huge := strings.Contains(string(out[i].Value), featureHuge) && t.topic == events.TopicUsageRaw
			switch {
			case behind[t]:
				failed = append(failed, watermill.FailedRecord{Index: i, Err: watermill.ErrBehind})
			case huge, i == breaks:
				behind[t] = true
				failed = append(failed, watermill.FailedRecord{Index: i, Permanent: huge, Err: watermill.ErrTooLarge})
			default:
				o.p.s.pipe.store(&out[i], *o.looked)
			}
		}
		return watermill.NewPublishError(failed, len(out))
	}})
}

// reader is a member of a group that reads a topic.
type reader struct {
	group  string
	topic  events.Topic
	next   map[int16]int64     // the next offset
	away   map[int16]time.Time // until when another member has the partition
	memory bool                // it reads events from memory, too
	began  int                 // the life of the server in which the process began
}

func (b *simPipe) newReader(c *projections.Consumer, memory bool) *reader {
	r := &reader{c.Name, c.Topic, map[int16]int64{}, map[int16]time.Time{}, memory, b.s.life}
	for _, p := range b.s.plan.partitions {
		r.next[p] = b.offsets[ckptKey{r.group, p}]
	}
	return r
}

// owns reports whether the member has a partition. One that comes back begins at the offset of the group.
func (b *simPipe) owns(r *reader, p int16) bool {
	until, moved := r.away[p]
	if moved && !b.s.calm && time.Now().Before(until) {
		return false
	}
	if moved {
		delete(r.away, p)
		r.next[p] = b.offsets[ckptKey{r.group, p}]
	}
	return true
}

// fetch reads records from a reader's position, with the faults of a bad network and a
// faulty broker.
func (b *simPipe) fetch(r *reader) (batch []events.Record) {
	s, w, stand := b.s, &b.s.w, r.next
	for _, p := range s.plan.partitions {
		if s.chance(w.moves) {
			s.count("partition moved")
			r.away[p] = time.Now().Add(time.Duration(s.rng.IntN(15_000)) * time.Millisecond)
		}
		if !b.owns(r, p) {
			continue
		}
		all := b.records[topicPart{r.topic, p}]
		switch {
		case s.chance(w.rewind):
			s.count("rewound")
			stand[p] = s.rng.Int64N(stand[p] + 1)
		case s.chance(w.skip):
			s.count("moved forward")
			stand[p] = int64(len(all))
		}
		n := min(int64(len(all))-stand[p], 1+s.rng.Int64N(12))
		for _, r := range all[stand[p] : stand[p]+n] {
			switch {
			case s.chance(w.drop):
				s.count("dropped")
				continue
			case s.chance(w.damage):
				s.count("damaged")
				r.Value = []byte("{")
				if s.rng.IntN(4) == 0 {
					r.Headers = nil
				}
			case s.chance(w.twice):
				s.count("delivered twice")
				batch = append(batch, r)
			}
			batch = append(batch, r)
		}
		stand[p] += n
	}
	if len(batch) > 1 && s.chance(w.shuffle) {
		s.count("shuffled")
		s.rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	}
	return batch
}

// ack commits offsets: an acknowledged record must be in the checkpoint, unless the database lost it since.
func (b *simPipe) ack(r *reader, batch []events.Record, stand map[int16]int64, life int) {
	for i := range batch {
		if life != b.s.life {
			break
		}
		at, err := codec.PositionOf(&batch[i])
		if err == nil && at.Epoch == b.s.db.owner(at.Position) && b.s.db.holds(&batch[i], at.Position) &&
			at.Position.Number > b.s.db.ckpt[ckptKey{r.group, at.Position.Partition}] && !b.remembers(r, &batch[i]) {
			b.s.fail("%s acknowledged %s before it was committed", r.group, at.Position)
		}
	}
	for p, n := range stand {
		b.offsets[ckptKey{r.group, p}] = n
	}
}

// remembers reports whether the process may take a record for folded because it, or another one, folded it before a
// failover that the process survived. Then the search for lost events finds the event.
func (b *simPipe) remembers(r *reader, record *events.Record) bool {
	if r.memory && r.began < b.s.life && b.folded[r.group+string(record.Header(events.HeaderEventID))] {
		b.s.count("fold remembered that a failover lost")
		return true
	}
	return false
}

// remember notes the folded positions before the database is set back.
func (b *simPipe) remember() {
	for k, n := range b.s.db.ckpt {
		for i := range min(n, int64(len(b.s.db.rows[k.partition]))) {
			b.folded[k.consumer+b.s.db.rows[k.partition][i].id()] = true
		}
	}
}

// holds reports whether the log has the event of a record at its position.
func (db *simDB) holds(r *events.Record, at events.Position) bool {
	rows := db.rows[at.Partition]
	return at.Number <= int64(len(rows)) && rows[at.Number-1].id() == string(r.Header(events.HeaderEventID))
}

func (b *simPipe) behind(r *reader) bool {
	return slices.ContainsFunc(b.s.plan.partitions, func(p int16) bool {
		return b.owns(r, p) && int64(len(b.records[topicPart{r.topic, p}])) > r.next[p]
	})
}

// logOf is the log of a process, before its writers start.
func (s *sim) logOf(p *proc) *eventlog.Log { return s.logWith(p, newMemory()) }

// logWith holds the events of the log in the memory of the process.
func (s *sim) logWith(p *proc, m *memory) *eventlog.Log {
	return eventlog.On(simPool{p}, simPool{p}, eventlog.Config{
		Producer: events.Producer{Service: "simulation"}, Writers: 2, Now: time.Now, NewID: p.newID, Logger: slog.New(slog.DiscardHandler),
		Inline: s.inlineOf(p, m), Recent: m.recent, Written: checkPayloads, Histories: new(validate.HistoryReader),
	})
}

// checkPayloads compares the payloads of appended events with their schemas.
func checkPayloads(n int, event func(i int) (events.Subject, []byte)) {
	for i := range n {
		subject, payload := event(i)
		if err := jsonschema.Check(subject, nil, payload); err != nil {
			panic(fmt.Sprintf("a payload of subject %d is unlike its schema: %v: %s", subject, err, payload))
		}
	}
}

func (s *sim) storeOf(p *proc) *store.Store {
	return store.New(simPool{p}, s.logOf(p), store.Config{Now: s.now})
}

// half replaces the service's source of random numbers.
func half(d time.Duration) time.Duration { return d / 2 }

// Observe counts the transactions of consumers that met this or that.
func (s *sim) Observe(_ *projections.Consumer, b projections.Batch) {
	for what, n := range map[string]int{"events that cannot be folded": len(b.Failed), "duplicates passed": b.Duplicates,
		"read from the log": b.FromLog, "strays": b.Foreign} {
		if n > 0 {
			s.count(what)
		}
	}
}

func never() bool { return false }

// startRelay starts a relay that looks after its leases each second.
func (s *sim) startRelay(name string) {
	p := s.newProc(name)
	p.start = func() { s.startRelay(name) }
	s.relayOn(p, s.logOf(p), recent.New().Relay())
}

// simRelayed counts the batches that a relay takes from the memory of its process.
type simRelayed struct {
	s *sim
	*recent.Reader
}

func (t simRelayed) Take(partition int16, fence, after, upTo int64, room int) []*events.Envelope {
	taken := t.Reader.Take(partition, fence, after, upTo, room)
	if len(taken) > 0 {
		t.s.count("taken from memory")
	}
	return taken
}

// relayOn runs a relay in a process.
func (s *sim) relayOn(p *proc, l *eventlog.Log, reader *recent.Reader) {
	looked := 0
	steps := (&relay.Relay{
		Pool: simPool{p}, Log: l, Recent: simRelayed{s, reader}, Appender: l, Publisher: simPublisher{p, &looked},
		Instance: fmt.Sprint(p.name, "/", p.life),
		NewID:    p.newID, Now: time.Now, Logger: slog.New(slog.DiscardHandler), Jitter: half, MaxEvents: 12, MaxBytes: 8 << 10,
	}).Steps()
	var leased time.Time
	p.run(func() {
		for p.idle("wait", 200*time.Millisecond, func() bool { return s.unpublished() }) {
			if time.Since(leased) >= time.Second {
				leased = time.Now()
				_ = steps.Lease(p.ctx)
			}
			s.mu.Lock()
			looked = s.life
			s.mu.Unlock()
			steps.Look(p.ctx)
			if !steps.Carry(p.ctx) {
				p.idle("rest", 200*time.Millisecond, never)
			}
		}
	})
}

func (s *sim) unpublished() bool {
	return slices.ContainsFunc(s.plan.partitions, func(p int16) bool { return s.db.cursors[p].position < s.db.heads[p].position })
}
