package simulation

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/recent"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/validate"
)

// apartFromOthers is the interval of a consumer's poll. It has no multiple in common with
// the other pauses: the order of two statements of one process at the same time would be up to the real
// scheduler.
const apartFromOthers = consume.DefaultPollEvery + 37*time.Microsecond

// startConsumer starts a process that runs one consumer.
func (s *sim) startConsumer(name string, make func(*proc) projections.Consumer) {
	p := s.newProc(name)
	p.start = func() { s.startConsumer(name, make) }
	s.newConsumer(p, make(p), s.logOf(p), nil).start()
}

// startNode starts a process that ingests, validates, aggregates and relays, with its events in memory as cmd/meterplex/node has them.
func (s *sim) startNode(i int) {
	p := s.newProc(fmt.Sprint("api-", i))
	p.start = func() { s.startNode(i) }
	m := newMemory()
	l := s.logWith(p, m)
	s.doors[i] = s.ingestOn(p, l)
	for _, c := range []projections.Consumer{validate.Consumer(p.newID, new(validate.HistoryReader)), aggregatorOfPoison(p.newID)} {
		s.newConsumer(p, c, l, m).start()
	}
	s.relayOn(p, l, m.relay)
}

// memory holds the newest events of a process, for its relay and its consumers.
type memory struct {
	recent  *recent.Cache
	relay   *recent.Reader
	readers map[events.Topic]*recent.Reader
}

func newMemory() *memory {
	cache := recent.New()
	m := &memory{cache, cache.Relay(), map[events.Topic]*recent.Reader{}}
	for _, topic := range []events.Topic{events.TopicUsageRaw, events.TopicUsageValidated} {
		m.readers[topic] = m.recent.Reader(topic, nil)
	}
	return m
}

// consumer is a consumer of a process. The names of its steps differ from those of another consumer of the process.
type consumer struct {
	s      *sim
	p      *proc
	runner *consume.Runner
	reader *reader
	busy   bool // it has the turn
}

func (s *sim) newConsumer(p *proc, c projections.Consumer, l *eventlog.Log, m *memory) *consumer {
	of := &consumer{s: s, p: p, reader: s.pipe.newReader(&c, m != nil), runner: &consume.Runner{
		Pool: simPool{p}, Log: l, Consumer: c, NewID: p.newID, Logger: slog.New(slog.DiscardHandler), Observe: s,
		Appended: func([]int16, bool) {},
	}}
	if m != nil {
		of.runner.Recent, of.runner.Cache = simReader{m.readers[c.Topic], s}, m.recent
	}
	return of
}

// simReader counts the stretches that are read from memory.
type simReader struct {
	*recent.Reader
	s *sim
}

func (r simReader) Stretch(list []events.Envelope, at events.Stretch, epoch int32, limit int) ([]events.Envelope, bool) {
	list, held := r.Reader.Stretch(list, at, epoch, limit)
	if held {
		r.s.count("read from memory")
	}
	return list, held
}

func (c *consumer) start() {
	c.p.run(c.consume)
	c.p.run(c.readOn)
}

func (c *consumer) run(what string) string { return what + " of " + c.reader.topic.Name() }

// poll waits for the turn and something to do. Messages of all sources are processed in turn, also in the service, by a
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
			err = c.p.do(&operation{what: c.run("acknowledge"), kind: kindAuto, effect: func(opOutcome) error {
				s.pipe.ack(r, batch, at, life)
				return nil
			}})
		}
		if err != nil && !c.p.idle(c.run("rest"), 100*time.Millisecond, never) {
			return
		}
	}
}

// readOn reads the log up to the events that the process has in memory, and up to those that the poll finds. Two consumers of a process
// poll at different times.
func (c *consumer) readOn() {
	var hints <-chan struct{}
	if c.runner.Recent != nil {
		hints = c.runner.Recent.Ready()
	}
	every := apartFromOthers + time.Duration(c.reader.topic)*time.Microsecond
	for next := time.Now(); ; {
		hinted := false
		next = next.Add(every)
		err := c.poll("look", kindSure, func() bool { hinted = len(hints) > 0; return hinted || !time.Now().Before(next) }, func() {
			if hinted {
				<-hints
			}
		})
		if err == nil {
			var ahead []events.Position
			if ahead, err = c.runner.Waiting(c.p.ctx); err == nil && len(ahead) > 0 {
				_, err = c.runner.ReadUpTo(c.p.ctx, ahead)
				if hinted {
					c.s.count("told to the " + c.runner.Consumer.Role)
				}
			}
			c.leave()
		}
		if err != nil && !c.p.idle(c.run("rest after a look"), 100*time.Millisecond, never) {
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
func (s *sim) inlineOf(p *proc, m *memory) eventlog.Inline {
	if !strings.HasSuffix(p.name, "1") {
		return nil
	}
	return inline{consume.NewInline(validate.Consumer(p.newID, new(validate.HistoryReader)), m.readers[events.TopicUsageRaw], nil, nil,
		slog.New(slog.DiscardHandler)), s}
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
