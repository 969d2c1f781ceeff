package simulation

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
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
}

func newSimPipe(s *sim) *simPipe {
	return &simPipe{s, map[topicPart][]events.Record{}, map[string]bool{}, map[string]bool{}, map[topicPart]int64{}, map[ckptKey]int64{}}
}

func (b *simPipe) has(r *simRow) bool { return b.stored[r.id()] && !b.due[r.id()] }

func (r *simRow) id() string { return uuid.UUID(r.values[colEventID]).String() }

// store appends a record, and looks whether the topic keeps the order of the log.
func (b *simPipe) store(r *events.Record) {
	at, err := codec.PlaceOf(r)
	if err != nil {
		b.s.fail("a record without a place was published: %v", err)
		return
	}
	t := topicPart{r.Topic, r.Partition}
	if !b.s.db.holds(r, at.Position) { // it was read before a failover lost it
		b.s.count("ghost published")
		r.Offset = int64(len(b.records[t]))
		b.records[t] = append(b.records[t], *r)
		return
	}
	if at.Previous > b.last[t] {
		b.s.fail("%s was published to %s before %d was", at.Position, r.Topic.Name(), at.Previous)
	}
	if b.s.lie == brokerBroken && b.s.rng.IntN(20) == 0 {
		return
	}
	id := string(r.Header(events.HeaderEventID))
	if b.stored[id] {
		b.s.count("published again")
	}
	delete(b.due, id)
	r.Offset = int64(len(b.records[t]))
	b.records[t] = append(b.records[t], *r)
	b.stored[id], b.last[t] = true, max(b.last[t], at.Position.Number)
}

// simPublisher is the pipe as the relay of a process sees it.
type simPublisher struct{ p *proc }

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
				o.p.s.pipe.store(&out[i])
			}
		}
		return watermill.NewPublishError(failed, len(out))
	}})
}

// fetch reads records from a reader's position, with the faults of a bad network and a
// faulty broker.
func (b *simPipe) fetch(topic events.Topic, stand map[int16]int64) (batch []events.Record) {
	s, w := b.s, &b.s.w
	for _, p := range s.plan.partitions {
		all := b.records[topicPart{topic, p}]
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
func (b *simPipe) ack(group string, batch []events.Record, stand map[int16]int64, life int) {
	for i := range batch {
		if life != b.s.life {
			break
		}
		at, err := codec.PlaceOf(&batch[i])
		if err == nil && at.Epoch == b.s.db.owner(at.Position) && b.s.db.holds(&batch[i], at.Position) && at.Position.Number > b.s.db.ckpt[ckptKey{group, at.Position.Partition}] {
			b.s.fail("%s acknowledged %s before it was committed", group, at.Position)
		}
	}
	for p, n := range stand {
		b.offsets[ckptKey{group, p}] = n
	}
}

// holds reports whether the log has the event of a record at its place.
func (db *simDB) holds(r *events.Record, at events.Position) bool {
	rows := db.rows[at.Partition]
	return at.Number <= int64(len(rows)) && rows[at.Number-1].id() == string(r.Header(events.HeaderEventID))
}

func (s *sim) behind(topic events.Topic, stand map[int16]int64) bool {
	return slices.ContainsFunc(s.plan.partitions, func(p int16) bool {
		return int64(len(s.pipe.records[topicPart{topic, p}])) > stand[p]
	})
}

// logOf is the log of a process, before its writers start.
func (s *sim) logOf(p *proc) *eventlog.Log {
	return eventlog.On(simPool{p}, simPool{p}, eventlog.Config{
		Producer: events.Producer{Service: "simulation"}, Writers: 2, Now: time.Now, NewID: p.newID, Logger: slog.New(slog.DiscardHandler),
		Inline: s.inlineOf(p),
	})
}

func (s *sim) storeOf(p *proc) *store.Store {
	return store.New(simPool{p}, s.logOf(p), store.Config{Now: s.now})
}

// half replaces the service's source of random numbers.
func half(d time.Duration) time.Duration { return d / 2 }

// apartFromOthers is the interval of a consumer's search for lost tails. It has no multiple in common with
// the other pauses: the order of two statements of one process at the same time would be up to the real
// scheduler.
const apartFromOthers = consume.DefaultTailEvery + 37*time.Microsecond

// startConsumer starts an instance of a consumer, with its watch for lost tails.
func (s *sim) startConsumer(name string, make func(*proc) projections.Consumer) {
	p := s.newProc(name)
	c := make(p)
	p.start = func() { s.startConsumer(name, make) }
	runner := &consume.Runner{Pool: simPool{p}, Log: s.logOf(p), Consumer: c, NewID: p.newID, Logger: slog.New(slog.DiscardHandler), Observe: s}
	stand := map[int16]int64{}
	for _, i := range s.plan.partitions {
		stand[i] = s.pipe.offsets[ckptKey{c.Name, i}]
	}
	p.run(func() {
		for {
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(apartFromOthers):
			}
			lost, err := runner.LostTails(p.ctx)
			if err == nil && len(lost) > 0 {
				_ = runner.ReadUpTo(p.ctx, lost)
			}
		}
	})
	p.run(func() {
		for {
			var batch []events.Record
			var life int
			err := p.do(&operation{what: "fetch", kind: kindFetch, until: time.Now().Add(time.Hour), ready: func() bool { return s.behind(c.Topic, stand) },
				effect: func(opOutcome) error { batch, life = s.pipe.fetch(c.Topic, stand), s.life; return nil }})
			for err == nil && len(batch) > 0 {
				if err = runner.Process(p.ctx, batch); err == nil {
					break
				}
				s.count("batch came again")
				if p.idle("pause", 100*time.Millisecond, never) {
					err = nil
				}
			}
			if err == nil {
				at := maps.Clone(stand)
				err = p.do(&operation{what: "acknowledge", kind: kindAuto, effect: func(opOutcome) error { s.pipe.ack(c.Name, batch, at, life); return nil }})
			}
			if err != nil && !p.idle("rest", 100*time.Millisecond, never) {
				return
			}
		}
	})
}

// Observe counts the transactions of consumers that met this or that.
func (s *sim) Observe(_ *projections.Consumer, b projections.Batch) {
	for what, n := range map[string]int{"events that cannot be folded": len(b.Failed), "duplicates passed": b.Duplicates, "read from the log": b.FromLog, "strays": b.Foreign, "records of an ended history": b.Ghosts} {
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
	l := s.logOf(p)
	steps := (&relay.Relay{
		Pool: simPool{p}, Log: l, Appender: l, Publisher: simPublisher{p}, Instance: fmt.Sprint(name, "/", p.life),
		NewID: p.newID, Now: time.Now, Logger: slog.New(slog.DiscardHandler), Jitter: half, MaxEvents: 12, MaxBytes: 8 << 10,
	}).Steps()
	var leased time.Time
	p.run(func() {
		for p.idle("wait", 200*time.Millisecond, func() bool { return s.unpublished() }) {
			if time.Since(leased) >= time.Second {
				leased = time.Now()
				_ = steps.Lease(p.ctx)
			}
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
