package relay

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// carry takes spans all the way: read, hand over, and move the cursors when the
// message is acknowledged. The same batch is sent until it is, or until one of its
// leases is not sure any more.
func (s *Subscriber) carry(ctx context.Context, spans []span, out chan<- *message.Message) {
	b, err := s.read(ctx, spans)
	if err != nil {
		if ctx.Err() == nil {
			s.complain(ctx, "the relay cannot read the log", err)
		}
		s.freeAll(spans, restAfterFault)
		return
	}
	delivery := watermill.Delivery{Out: out, Grace: s.CloseGrace}
	for {
		values, msg := b.message(ctx)
		switch delivery.Send(values, msg) {
		case watermill.Acked:
			s.settle(ctx, b)
			return
		case watermill.Unsettled:
			s.Logger.WarnContext(ctx, "the relay was stopped before a batch was acknowledged; its records may be sent again", "partitions", len(spans), "waited", s.CloseGrace)
			fallthrough
		case watermill.Stopped:
			s.freeAll(spans, 0)
			return
		}
		b.tries++
		s.noteFailure(ctx, b)
		// The router has paused already; another one might not.
		if !sleep(ctx, firstPause) || !s.allValid(spans) {
			s.freeAll(spans, 0)
			return
		}
	}
}

func (s *Subscriber) allValid(spans []span) bool {
	now := time.Now()
	for _, sp := range spans {
		if !s.held.valid(sp, now) {
			return false
		}
	}
	return true
}

func (s *Subscriber) freeAll(spans []span, rest time.Duration) {
	for _, sp := range spans {
		s.held.free(sp, rest)
	}
}

// settle moves the cursors as far as the records are stored, then deals with what
// was refused.
func (s *Subscriber) settle(ctx context.Context, b *batch) {
	var steps []step
	for i := range b.parts {
		to, _, _ := b.reached(i)
		if p := &b.parts[i]; to > p.after {
			steps = append(steps, step{p.span, to})
		}
	}
	lost := s.move(ctx, steps, b.runs())
	for i := range b.parts {
		p := &b.parts[i]
		if lost[p.partition] {
			s.held.forget(p.partition, p.fence)
			continue
		}
		s.finish(ctx, b, i)
	}
}

func (b *batch) runs() []run {
	var runs []run
	for i := range b.result {
		runs = append(runs, b.result[i].runs...)
	}
	return runs
}

// finish frees a part whose cursor moved. What it ended before decides how long
// its partition rests: a refused event is tried again alone, up to maxTries.
func (s *Subscriber) finish(ctx context.Context, b *batch, i int) {
	to, err, refused := b.reached(i)
	p := &b.parts[i]
	tries := 0
	s.held.with(p.span, func(h *holding) {
		if to > h.cursor {
			h.cursor, h.tries = to, 0
		}
		if err != nil {
			h.tries++
		}
		tries = h.tries
	})
	if err == nil {
		s.held.free(p.span, 0)
		return
	}
	s.noteFailure(ctx, b)
	rest := pauseAfter(tries, s.Jitter)
	if refused {
		s.Observe.Refused(b.topicAt(i), p.refused != nil)
	} else {
		s.Observe.Failed(err)
	}
	if refused && tries >= maxTries {
		rest = s.withhold(ctx, p.span, to+1, err)
	}
	s.held.free(p.span, rest)
}

// topicAt is the topic of the record that a part ended before, 0 where unknown.
func (b *batch) topicAt(i int) events.Topic {
	if b.result == nil || b.result[i].err == nil {
		return 0
	}
	records, err := events.ParseFrame(b.payload)
	if err != nil {
		return 0
	}
	return records[b.parts[i].first+b.result[i].stored].Topic
}

// complain logs at most once a second.
func (s *Subscriber) complain(ctx context.Context, what string, err error) {
	if s.complaints.due() {
		level := s.Logger.WarnContext
		if errors.Is(err, errHole) {
			level = s.Logger.ErrorContext
		}
		level(ctx, what, "error", err)
	}
}
