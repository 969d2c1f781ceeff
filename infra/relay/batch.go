package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/relay/cursors"
	"github.com/meterplex/meterplex/infra/watermill"
)

// batch is the content of one message: the records of each span, in order.
type batch struct {
	segments []segment
	records  []events.Record
	// results has one entry per segment, set by publish. It is nil if another handler acknowledged the
	// message.
	results []segmentResult
	tries   int
	leased  func() bool // whether this instance may still publish all spans
}

// segment is a span with its records: records[first:end] of the batch.
type segment struct {
	span
	first, end int
	positions  []int64 // of the records
	refused    error   // why the event after span.to cannot be rendered as a record; nil if rendering did not fail
}

// segmentResult is the publish result of a segment.
type segmentResult struct {
	stored  int // records stored by the broker, counted from the segment's first
	runs    []run
	err     error // of the first record that is not stored
	refused bool  // the refusal is permanent
}

// run is a publication of records with consecutive offsets.
type run struct {
	cursors.Publication
	records int64
}

// errHole reports a gap in the log, which proves loss. Events after the gap must not be published.
var errHole = errors.New("the log has a hole")

// extend appends the records of events until left bytes are used up. A batch has at least one event,
// whatever its size.
func (p *segment) extend(records []events.Record, list []*events.Envelope, left *int, w *codec.RecordWriter) ([]events.Record, error) {
	records, p.positions = slices.Grow(records, len(list)), slices.Grow(p.positions, len(list))
	for _, e := range list {
		if e.Position.Number != p.to+1 {
			return nil, fmt.Errorf("%s follows %d in the log: %w", e.Position, p.to, errHole)
		}
		if *left <= 0 {
			return records, nil
		}
		r, err := w.Record(e)
		if err != nil && !e.Withheld {
			p.refused = err
			return records, nil
		}
		if err == nil { // a withheld event of an unknown subject has no record on any topic
			records, p.positions = append(records, r), append(p.positions, e.Position.Number)
			*left -= len(r.Value)
		}
		p.to++
	}
	return records, nil
}

type batchKey struct{}

// message returns a new message with the batch. Its id is the first position.
func (b *batch) message(ctx context.Context) (context.Context, *message.Message) {
	b.results = nil
	first := events.Position{Partition: b.segments[0].partition, Number: b.segments[0].after + 1}
	msg := message.NewMessage(first.String(), nil)
	msg.Metadata.Set("tries", strconv.Itoa(b.tries))
	return context.WithValue(watermill.WithRecords(ctx, b.records), batchKey{}, b), msg
}

// resultsOf computes the publish result of each segment.
func (b *batch) resultsOf(stored []events.Record, failed map[int]watermill.FailedRecord) []segmentResult {
	results := make([]segmentResult, len(b.segments))
	for i := range b.segments {
		p, res := &b.segments[i], &results[i]
		for j := p.first; j < p.end; j++ {
			if f, bad := failed[j]; bad {
				res.err, res.refused = f.Err, f.Permanent
				break
			}
			res.stored++
			res.runs = extendRuns(res.runs, &stored[j], p.positions[j-p.first])
		}
	}
	return results
}

// extendRuns adds a stored record to the last run of its topic if the offset follows, else starts a run.
func extendRuns(runs []run, r *events.Record, position int64) []run {
	if r.Offset < 0 {
		return runs
	}
	for i := len(runs) - 1; i >= 0; i-- {
		if u := &runs[i]; u.Topic == r.Topic {
			if u.Offset+u.records != r.Offset {
				break
			}
			u.To, u.records = position, u.records+1
			return runs
		}
	}
	return append(runs, run{cursors.Publication{Partition: r.Partition, Topic: r.Topic, From: position, To: position, Offset: r.Offset}, 1})
}

func (b *batch) runs() []run {
	var runs []run
	for i := range b.results {
		runs = append(runs, b.results[i].runs...)
	}
	return runs
}

// noneStored reports that no record was stored or permanently refused.
func (b *batch) noneStored() bool {
	for i := range b.results {
		if r := &b.results[i]; r.stored > 0 || r.err == nil || r.refused {
			return false
		}
	}
	return true
}

// reached returns the position up to which a segment may be passed, and the error that stopped it.
func (b *batch) reached(i int) (to int64, err error, refused bool) {
	p := &b.segments[i]
	if b.results != nil && b.results[i].err != nil {
		r := &b.results[i]
		return p.positions[r.stored] - 1, r.err, r.refused
	}
	return p.to, p.refused, p.refused != nil
}

// topicAt returns the topic of the record that stopped a segment, 0 if unknown.
func (b *batch) topicAt(i int) events.Topic {
	if b.results == nil || b.results[i].err == nil {
		return 0
	}
	return b.records[b.segments[i].first+b.results[i].stored].Topic
}
