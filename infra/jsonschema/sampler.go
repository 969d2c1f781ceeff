package jsonschema

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// Sampler checks a random sample of the payloads that an instance records and consumes. It never
// delays them: Run checks them later, and a payload that finds the queue full is left out.
type Sampler struct {
	every   int64
	schemas *Schemas
	logger  *slog.Logger
	now     func() time.Time
	checked func(s events.Subject, refused bool)
	queue   chan sampled
	logged  map[events.Subject]time.Time // of the last refusal in the log
}

type sampled struct {
	subject    events.Subject
	vocabulary *events.Vocabulary
	payload    []byte
	from       string // where it was found
}

const (
	// maxQueue bounds the payloads that wait for Run.
	maxQueue = 64
	// logEvery is how often a refusal of one subject is logged.
	logEvery = time.Minute
)

// NewSampler returns a sampler of one of every so many events. checked is called after each check.
func NewSampler(every int64, logger *slog.Logger, now func() time.Time, checked func(s events.Subject, refused bool)) *Sampler {
	return &Sampler{every: every, schemas: New(), logger: logger, now: now, checked: checked,
		queue: make(chan sampled, maxQueue), logged: map[events.Subject]time.Time{}}
}

// Written samples events that were appended to the log. It may be used as eventlog.Config.Written.
func (s *Sampler) Written(n int, event func(i int) (events.Subject, []byte)) {
	for i := s.first(); i < int64(n); i += s.every {
		subject, payload := event(int(i))
		s.put(sampled{subject: subject, payload: payload, from: "log"})
	}
}

// first draws the first event of the sample in a batch. Each event of a batch is in the sample with the same
// probability: a fixed step would meet only one of two subjects that alternate in the log.
func (s *Sampler) first() int64 { return rand.Int64N(s.every) }

func (s *Sampler) put(p sampled) {
	select {
	case s.queue <- p:
	default: // Run is behind; the next sample will do
	}
}

// Observer returns an observer of consumers that samples the events they have applied, and then
// reports to next.
func (s *Sampler) Observer(next projections.Observer) projections.Observer { return &observer{s, next} }

type observer struct {
	*Sampler
	next projections.Observer
}

// Observe implements projections.Observer.
func (o *observer) Observe(c *projections.Consumer, b projections.Batch) {
	for i := o.first(); i < int64(len(b.Applied)); i += o.every {
		e := &b.Applied[i]
		if len(e.Payload) > 0 { // a withheld event of a topic has none
			o.put(sampled{e.Subject, e.Vocabulary, append([]byte(nil), e.Payload...), c.Name})
		}
	}
	o.next.Observe(c, b)
}

// Run checks the sample until ctx ends.
func (s *Sampler) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-s.queue:
			s.check(&p)
		}
	}
}

func (s *Sampler) check(p *sampled) {
	err := s.schemas.Check(p.subject, p.vocabulary, p.payload)
	if err == ErrUnknown {
		return
	}
	s.checked(p.subject, err != nil)
	if err == nil {
		return
	}
	now := s.now()
	if last, ok := s.logged[p.subject]; ok && now.Sub(last) < logEvery {
		return
	}
	s.logged[p.subject] = now
	info, _ := p.subject.Info()
	s.logger.Error("the payload of an event is unlike its schema; the event counts as it is", "subject", info.Name(), "from", p.from, "rules", err.Error())
}
