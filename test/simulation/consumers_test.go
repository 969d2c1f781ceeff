package simulation

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/validate"
)

// apartFromOthers is the interval of a consumer's search for lost tails. It has no multiple in common with
// the other pauses: the order of two statements of one process at the same time would be up to the real
// scheduler.
const apartFromOthers = consume.DefaultTailEvery + 37*time.Microsecond

// startConsumer starts a process that runs one consumer.
func (s *sim) startConsumer(name string, make func(*proc) projections.Consumer) {
	p := s.newProc(name)
	p.start = func() { s.startConsumer(name, make) }
	s.newConsumer(p, make(p), s.logOf(p), nil).start()
}

// startNode starts a process that ingests, validates, aggregates and relays, with handovers as cmd/meterplex/node has them.
func (s *sim) startNode(i int) {
	p := s.newProc(fmt.Sprint("api-", i))
	p.start = func() { s.startNode(i) }
	handed := consume.Handovers{events.TopicUsageRaw: consume.NewHandover(), events.TopicUsageValidated: consume.NewHandover()}
	tail := eventlog.NewTail()
	l := s.logWith(p, handed, tail)
	s.doors[i] = s.ingestOn(p, l)
	for _, c := range []projections.Consumer{validate.Consumer(p.newID, new(validate.Histories)), aggregatorOfPoison(p.newID)} {
		consumer := s.newConsumer(p, c, l, handed)
		consumer.runner.Newest = tail
		consumer.start()
	}
	s.relayOn(p, l, tail)
}

// consumer is a consumer of a process. The names of its steps differ from those of another consumer of the process.
type consumer struct {
	s      *sim
	p      *proc
	runner *consume.Runner
	reader *reader
	busy   bool // it has the turn, of records or of events that were handed over
}

func (s *sim) newConsumer(p *proc, c projections.Consumer, l *eventlog.Log, handed consume.Handovers) *consumer {
	return &consumer{s: s, p: p, reader: s.pipe.newReader(&c, handed != nil), runner: &consume.Runner{
		Pool: simPool{p}, Log: l, Consumer: c, NewID: p.newID, Logger: slog.New(slog.DiscardHandler), Observe: s,
		Appended: func([]int16, bool) {}, Handed: handed[c.Topic], Next: handed,
	}}
}

func (c *consumer) start() {
	c.p.run(c.findTails)
	c.p.run(c.consume)
	if c.runner.Handed != nil {
		c.p.run(c.consumeHanded)
	}
}

func (c *consumer) run(what string) string { return what + " of " + c.reader.topic.Name() }

// findTails looks for lost tails. Two consumers of a process do so at different times.
func (c *consumer) findTails() {
	for {
		select {
		case <-c.p.ctx.Done():
			return
		case <-time.After(apartFromOthers + time.Duration(c.reader.topic)*time.Microsecond):
		}
		lost, err := c.runner.LostTails(c.p.ctx)
		if err == nil && len(lost) > 0 {
			_ = c.runner.ReadUpTo(c.p.ctx, lost)
		}
	}
}

// poll waits for the turn and something to do. Records and handed events are processed in turn, also in the service, by a
// mutex, on which the scheduler of the simulation cannot wait.
func (c *consumer) poll(what string, k operationKind, ready func() bool, effect func()) error {
	return c.p.do(&operation{
		what: c.run(what), kind: k, until: time.Now().Add(24 * time.Hour), ready: func() bool { return !c.busy && ready() },
		effect: func(opOutcome) error { c.busy = true; effect(); return nil },
	})
}

func (c *consumer) leave() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.busy = false
}

// consume processes the records of the topic.
func (c *consumer) consume() {
	s, r := c.s, c.reader
	for {
		var batch []events.Record
		var life int
		err := c.poll("fetch", kindFetch, func() bool { return s.pipe.behind(r) }, func() { batch, life = s.pipe.fetch(r), s.life })
		for err == nil && len(batch) > 0 {
			err = c.runner.Process(c.p.ctx, batch)
			c.leave()
			if err == nil {
				break
			}
			s.count("batch came again")
			if c.p.idle(c.run("pause"), 100*time.Millisecond, never) {
				err = c.poll("again", kindSure, always, func() {})
			}
		}
		if err == nil && len(batch) == 0 {
			c.leave()
		}
		if err == nil {
			at := maps.Clone(r.next)
			err = c.p.do(&operation{what: c.run("acknowledge"), kind: kindAuto, effect: func(opOutcome) error { s.pipe.ack(r, batch, at, life); return nil }})
		}
		if err != nil && !c.p.idle(c.run("rest"), 100*time.Millisecond, never) {
			return
		}
	}
}

// consumeHanded processes the events that the process handed over.
func (c *consumer) consumeHanded() {
	hints := c.runner.Handed.Ready()
	for c.poll("take handed events", kindSure, func() bool { return len(hints) > 0 }, func() { <-hints }) == nil {
		n, err := c.runner.ProcessHanded(c.p.ctx)
		c.leave()
		switch {
		case n > 0:
			c.s.count("handed to the " + c.runner.Consumer.Role)
		case err == nil:
			c.s.count("handed events left to the pipe")
		}
		if err != nil && !c.p.idle(c.run("rest after handed events"), 100*time.Millisecond, never) {
			return
		}
	}
}

func always() bool { return true }

// inline is a validator in the process of an API. All partitions are open to it, while the validators of other processes
// work on them, too: that is harder than in the service, where processes leave the partitions of others.
type inline struct {
	*consume.Inline
	s *sim
}

// inlineOf is the inline validator of every second process that ingests.
func (s *sim) inlineOf(p *proc, handed consume.Handovers) eventlog.Inline {
	if !strings.HasSuffix(p.name, "1") {
		return nil
	}
	to := handed[events.TopicUsageRaw]
	if to == nil {
		to = consume.NewHandover()
	}
	return inline{consume.NewInline(validate.Consumer(p.newID, new(validate.Histories)), to, nil, nil, slog.New(slog.DiscardHandler)), s}
}

func (inline) Open(partitions []int16) []int16 { return partitions }

func (in inline) Folded(stretches []events.InlineStretch, batch []events.Envelope, followUps int, took time.Duration) {
	in.s.count("validated inline")
	if len(stretches) > 0 && batch[0].Position.Number <= stretches[0].After {
		in.s.fail("an event behind the checkpoint of partition %d was folded again", stretches[0].Partition)
	}
	in.Inline.Folded(stretches, batch, followUps, took)
}

// freeCheckpoints leaves out the checkpoints that another transaction has locked.
func (tx *simTx) freeCheckpoints(text, consumer string, partitions []int16) *simRows {
	out, db := simAnswer(), tx.p.s.db
	for _, p := range partitions {
		if strings.Contains(text, "SKIP LOCKED") && !db.free(tx, locksOf(consumer, []int16{p})) {
			tx.p.s.count("checkpoint left to others")
			continue
		}
		if strings.Contains(text, "FOR UPDATE") {
			db.take(tx, locksOf(consumer, []int16{p}))
		}
		out.list = append(out.list, []any{p, db.ckpt[ckptKey{consumer, p}]})
	}
	return out
}
