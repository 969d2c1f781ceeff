package relay

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	wm "github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// batch is what one message carries: for each span its records, in order.
type batch struct {
	parts   []part
	payload []byte
	// result is what the handler says of each part; nil where the message was
	// acknowledged by a handler that knows nothing of batches.
	result []partResult
	tries  int
}

// part is a span with its records, which are records[first:end] of the frame.
type part struct {
	span
	first, end int
	positions  []int64 // of the records
	refused    error   // why the event after span.to makes no record; nil: it was not tried
}

// partResult is how far a part came.
type partResult struct {
	stored  int // records from its first on that the broker has
	runs    []run
	err     error // of the first record that the broker has not
	refused bool  // that record alone can never be published as it is
}

// run is a stretch of one topic with consecutive offsets.
type run struct {
	partition int16
	topic     events.Topic
	from, to  int64
	offset    int64
	records   int64
}

// errHole says that the log has a hole, which is proof of loss: nothing behind it
// may be published as if it followed.
var errHole = errors.New("the log has a hole")

// read makes a batch of spans. Spans are cut short by MaxBytes, and before an
// event that makes no record.
func (s *Subscriber) read(ctx context.Context, spans []span) (*batch, error) {
	b := &batch{}
	var records []events.Record
	left := s.MaxBytes
	first, err := s.readFirst(ctx, spans)
	if err != nil {
		return nil, err
	}
	for _, sp := range spans {
		p := part{span: sp, first: len(records)}
		p.to = sp.after
		for left > 0 && p.to < sp.to && p.refused == nil {
			list := first[sp.partition]
			if delete(first, sp.partition); list == nil {
				if list, err = s.Log.Read(ctx, sp.partition, p.to, sp.to, readChunk); err != nil {
					return nil, err
				}
			}
			if len(list) == 0 {
				return nil, fmt.Errorf("%s of the log is missing: %w", events.Position{Partition: sp.partition, Number: p.to + 1}, errHole)
			}
			if records, err = p.extend(records, list, &left); err != nil {
				return nil, err
			}
		}
		p.end = len(records)
		b.parts = append(b.parts, p)
	}
	b.payload = events.AppendFrame(make([]byte, 0, frameSize(records)), records)
	return b, nil
}

// readFirst reads the beginnings of all spans in one statement: at a thousand
// single events a second a batch is a handful of them in each of many partitions,
// and a statement for each cost more than all else that the relay did.
func (s *Subscriber) readFirst(ctx context.Context, spans []span) (map[int16][]events.Envelope, error) {
	stretches := make([]events.Stretch, len(spans))
	for i, sp := range spans {
		stretches[i] = events.Stretch{Partition: sp.partition, After: sp.after, UpTo: sp.to}
	}
	list, err := s.Log.ReadStretches(ctx, stretches, max(1, readChunk/len(spans)))
	if err != nil {
		return nil, err
	}
	byPartition := make(map[int16][]events.Envelope, len(spans))
	for i := range list {
		p := list[i].Position.Partition
		byPartition[p] = append(byPartition[p], list[i])
	}
	return byPartition, nil
}

// readChunk bounds what is read in vain when a batch is full by its bytes.
const readChunk = 500

// extend appends the events' records until left is used up. A batch has at least
// one event, however large.
func (p *part) extend(records []events.Record, list []events.Envelope, left *int) ([]events.Record, error) {
	for i := range list {
		e := &list[i]
		if e.Position.Number != p.to+1 {
			return nil, fmt.Errorf("%s follows %d in the log: %w", e.Position, p.to, errHole)
		}
		if *left <= 0 {
			return records, nil
		}
		r, err := events.ToRecord(e)
		if err != nil && !e.Withheld {
			p.refused = err
			return records, nil
		}
		if err == nil { // a withheld event of an unknown subject has no place on any topic
			records, p.positions = append(records, r), append(p.positions, e.Position.Number)
			*left -= len(r.Value)
		}
		p.to++
	}
	return records, nil
}

// frameSize is about what the frame takes, so that it is allocated once.
func frameSize(records []events.Record) int {
	n := 16
	for i := range records {
		n += 320 + len(records[i].Value) // keys and headers take less
	}
	return n
}

type batchKey struct{}

// message makes a new message of the batch, named after its first position.
func (b *batch) message(ctx context.Context) (context.Context, *wm.Message) {
	b.result = nil
	first := events.Position{Partition: b.parts[0].partition, Number: b.parts[0].after + 1}
	msg := wm.NewMessage(first.String(), b.payload)
	msg.Metadata.Set("tries", strconv.Itoa(b.tries))
	return context.WithValue(ctx, batchKey{}, b), msg
}

// publish is the router's handler. Its error, which brings the same batch again,
// means that nothing at all was stored.
func (r *Relay) publish(msg *wm.Message) error {
	records, err := watermill.Records(msg)
	if err != nil {
		return err
	}
	stored, err := r.Publisher.PublishRecords(msg.Context(), records)
	failed, err := failures(len(records), err)
	r.count(stored, failed)
	b, known := msg.Context().Value(batchKey{}).(*batch)
	if !known {
		return err
	}
	b.result = b.resultOf(stored, failed)
	if err != nil && b.stuck() {
		r.Observe.Failed(err)
		return fmt.Errorf("publishing %d records: %w", len(records), err)
	}
	return nil
}

// failures gives the failure of each record that is not stored, by index.
func failures(records int, err error) (map[int]watermill.FailedRecord, error) {
	if err == nil {
		return nil, nil
	}
	failed := map[int]watermill.FailedRecord{}
	var partial *watermill.PublishError
	if errors.As(err, &partial) {
		for _, f := range partial.Failed {
			failed[f.Index] = f
		}
		return failed, err
	}
	for i := range records {
		failed[i] = watermill.FailedRecord{Index: i, Err: err}
	}
	return failed, err
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

// resultOf finds how far each part came.
func (b *batch) resultOf(stored []events.Record, failed map[int]watermill.FailedRecord) []partResult {
	results := make([]partResult, len(b.parts))
	for i := range b.parts {
		p, res := &b.parts[i], &results[i]
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

// extendRuns adds a stored record to the run that it continues, or begins one.
func extendRuns(runs []run, r *events.Record, position int64) []run {
	if r.Offset < 0 {
		return runs
	}
	for i := len(runs) - 1; i >= 0; i-- {
		if u := &runs[i]; u.topic == r.Topic {
			if u.offset+u.records != r.Offset {
				break
			}
			u.to, u.records = position, u.records+1
			return runs
		}
	}
	return append(runs, run{r.Partition, r.Topic, position, position, r.Offset, 1})
}

// stuck says that the pipe took nothing, for a reason that is no record's own.
func (b *batch) stuck() bool {
	for i := range b.result {
		if r := &b.result[i]; r.stored > 0 || r.err == nil || r.refused {
			return false
		}
	}
	return true
}

// reached is the position up to which a part may be passed, and why no further.
func (b *batch) reached(i int) (to int64, err error, refused bool) {
	p := &b.parts[i]
	if b.result != nil && b.result[i].err != nil {
		r := &b.result[i]
		return p.positions[r.stored] - 1, r.err, r.refused
	}
	return p.to, p.refused, p.refused != nil
}
