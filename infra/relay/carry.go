package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/watermill"
)

// carry publishes spans: it reads them, sends the batch to the handler, and moves the cursors after Ack.
// It sends the same batch until it is acknowledged, or until one of its leases may have expired.
func (s *Subscriber) carry(ctx context.Context, spans []span, out chan<- *message.Message) {
	b, err := s.read(ctx, spans)
	if err != nil {
		if ctx.Err() == nil {
			s.logFault(ctx, "cannot read the log", err)
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
			s.Logger.WarnContext(ctx, "the relay stopped before a batch was acknowledged; its records may be published again", "partitions",
				len(spans), "waited", s.CloseGrace)
			fallthrough
		case watermill.Stopped:
			s.freeAll(spans, 0)
			return
		}
		b.tries++
		s.recordFailure(ctx, b)
		// The router has paused already, but another router might not.
		if !loop.Sleep(ctx, pauses.First) || !s.allValid(spans) {
			s.freeAll(spans, 0)
			return
		}
	}
}

// read builds a batch from spans. A span is cut short by MaxBytes, and before an event that cannot be
// rendered as a record.
func (s *Subscriber) read(ctx context.Context, spans []span) (*batch, error) {
	b := &batch{leased: func() bool { return s.allValid(spans) }}
	var records []events.Record
	var writer codec.RecordWriter
	left := s.MaxBytes
	first, err := s.first(ctx, spans)
	if err != nil {
		return nil, err
	}
	for _, sp := range spans {
		p := segment{span: sp, first: len(records)}
		p.to = sp.after
		for left > 0 && p.to < sp.to && p.refused == nil {
			list := first[sp.partition]
			if delete(first, sp.partition); list == nil {
				read, err := s.Log.Read(ctx, sp.partition, p.to, sp.to, readChunk)
				if err != nil {
					return nil, err
				}
				for i := range read {
					list = append(list, &read[i])
				}
			}
			if len(list) == 0 {
				return nil, fmt.Errorf("%s of the log is missing: %w", events.Position{Partition: sp.partition, Number: p.to + 1}, errHole)
			}
			if records, err = p.extend(records, list, &left, &writer); err != nil {
				return nil, err
			}
		}
		p.end = len(records)
		b.segments = append(b.segments, p)
	}
	b.records = records
	return b, nil
}

// first returns the beginning of all spans. A span whose beginning is in memory ends where that has a gap: the
// next batch goes on from there.
func (s *Subscriber) first(ctx context.Context, spans []span) (map[int16][]*events.Envelope, error) {
	byPartition := make(map[int16][]*events.Envelope, len(spans))
	var rest []span
	room := s.MaxBytes
	for i := range spans {
		sp := &spans[i]
		if room <= 0 {
			sp.to = sp.after
			continue
		}
		var taken []*events.Envelope
		if s.Recent != nil {
			taken = s.Recent.Take(sp.partition, sp.fence, sp.after, sp.to, room)
		}
		if len(taken) == 0 {
			rest = append(rest, *sp)
			continue
		}
		byPartition[sp.partition], sp.to = taken, taken[len(taken)-1].Position.Number
		for j := range taken {
			room -= len(taken[j].Payload)
		}
	}
	if len(rest) == 0 {
		return byPartition, nil
	}
	return byPartition, s.readFirst(ctx, rest, byPartition)
}

// readFirst reads the beginning of all spans in one statement. At a thousand single events per second a
// batch holds a few events from each of many partitions, and one statement per partition cost more than
// the rest of the relay's work.
func (s *Subscriber) readFirst(ctx context.Context, spans []span, byPartition map[int16][]*events.Envelope) error {
	stretches := make([]events.Stretch, len(spans))
	for i, sp := range spans {
		stretches[i] = events.Stretch{Partition: sp.partition, After: sp.after, UpTo: sp.to}
	}
	list, err := s.Log.ReadStretches(ctx, stretches, max(1, readChunk/len(spans)))
	if err != nil {
		return err
	}
	for i := range list {
		p := list[i].Position.Partition
		byPartition[p] = append(byPartition[p], &list[i])
	}
	return nil
}

// readChunk bounds the events that are read but do not fit into MaxBytes.
const readChunk = 500

// errUnsure reports a batch that waited before it was published, e.g. in a frozen process, until another relay may have published its
// events. They may have been erased since: the copies in memory may differ from the log.
var errUnsure = errors.New("the leases of the batch were not renewed in time")

// publish is the router's handler. It returns an error only if no record was stored; the same batch is
// then sent again, while its leases are sure.
func (r *Relay) publish(msg *message.Message) error {
	b, known := msg.Context().Value(batchKey{}).(*batch)
	records, err := watermill.Records(msg)
	if err != nil {
		return err
	}
	if known && !b.leased() {
		return errUnsure
	}
	err = watermill.Topics{Publisher: r.Publisher, InTurn: r.inTurn}.Publish(msg.Context(), records)
	failed := watermill.Failures(err, len(records))
	r.count(records, failed)
	if !known {
		return err
	}
	b.results = b.resultsOf(records, failed)
	if err != nil && b.noneStored() {
		r.Observe.Failed(err)
		return fmt.Errorf("publishing %d records: %w", len(records), err)
	}
	return nil
}

func (r *Relay) count(records []events.Record, failed map[int]watermill.FailedRecord) {
	var n [events.TopicCount]int
	for i := range records {
		if _, bad := failed[i]; !bad && records[i].Topic > 0 && records[i].Topic < events.TopicCount {
			n[records[i].Topic]++
		}
	}
	for t := range n {
		if n[t] > 0 {
			r.Observe.Published(events.Topic(t), n[t])
		}
	}
}

// settle moves the cursors as far as records are stored, then handles refused records.
func (s *Subscriber) settle(ctx context.Context, b *batch) {
	var moves []cursorMove
	for i := range b.segments {
		to, _, _ := b.reached(i)
		if p := &b.segments[i]; to > p.after {
			moves = append(moves, cursorMove{p.span, to})
		}
	}
	lost := s.move(ctx, moves, b.runs())
	for i := range b.segments {
		p := &b.segments[i]
		if lost[p.partition] {
			s.held.forget(p.partition, p.fence)
			continue
		}
		s.finish(ctx, b, i)
	}
}

// finish frees a segment whose cursor moved. If an error stopped the segment, its partition rests first.
// A refused event is retried alone, up to maxTries, then withheld.
func (s *Subscriber) finish(ctx context.Context, b *batch, i int) {
	to, err, refused := b.reached(i)
	p := &b.segments[i]
	tries := 0
	s.held.update(p.span, func(h *holding) {
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
	s.recordFailure(ctx, b)
	rest := pauses.Jittered(tries, s.Jitter)
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

// logFault logs at most once per second. It reports each hole, which is an error from the start.
func (s *Subscriber) logFault(ctx context.Context, failure string, err error) {
	if errors.Is(err, errHole) {
		s.Observe.Hole()
	}
	if s.faultLog.due() {
		level := s.begun.Level(slog.LevelWarn)
		if errors.Is(err, errHole) {
			level = slog.LevelError
		}
		s.Logger.Log(ctx, level, failure, "error", err)
	}
}
