package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/infra/watermill"
)

// topicPartition is the unit of ordering.
type topicPartition struct {
	topic     string
	partition int32
}

// failures collects the failed records of one call.
type failures struct {
	index  map[*kgo.Record]int
	failed []FailedRecord
}

func newFailures(batch []*kgo.Record) *failures {
	f := &failures{index: make(map[*kgo.Record]int, len(batch))}
	for i, r := range batch {
		f.index[r] = i
	}
	return f
}

func (f *failures) add(r *kgo.Record, permanent bool, err error) {
	f.failed = append(f.failed, FailedRecord{Index: f.index[r], Permanent: permanent, Err: err})
}

func (f *failures) addAll(batch []*kgo.Record, err error) {
	for _, r := range batch {
		f.add(r, false, err)
	}
}

// produce writes the batch and returns the failed records. Within a partition it writes no record behind a
// failed one.
func (p *Publisher) produce(ctx context.Context, batch []*kgo.Record) []FailedRecord {
	if len(batch) == 0 {
		return nil
	}
	if !p.enter() {
		f := newFailures(batch)
		f.addAll(batch, fmt.Errorf("publish: %w", watermill.ErrClosed))
		return f.failed
	}
	defer p.calls.Done()
	ctx, cancel := context.WithTimeout(ctx, p.deliveryTimeout())
	defer cancel()
	defer p.countTimeout(ctx)
	var f *failures
	if !sendable(batch) {
		f = newFailures(batch)
		batch = refuse(batch, f)
	}
	errs := p.send(ctx, batch)
	if errs == nil {
		return f.list()
	}
	if f == nil {
		f = newFailures(batch)
	}
	for _, group := range byPartition(batch, errs) {
		p.isolate(ctx, group, errs, f)
	}
	return f.list()
}

// maxTimeoutFactor bounds the duration of a call, in delivery timeouts.
const maxTimeoutFactor = 6

// deliveryTimeout doubles after each consecutive call that timed out. With a fixed timeout, a slow broker
// would get the same records again and again, and no call would succeed. A call also notices a broker that
// recovers meanwhile.
func (p *Publisher) deliveryTimeout() time.Duration {
	return p.cfg.DeliveryTimeout * time.Duration(min(1<<min(p.timeouts.Load(), 10), maxTimeoutFactor))
}

func (p *Publisher) countTimeout(ctx context.Context) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		p.timeouts.Add(1)
	} else if ctx.Err() == nil {
		p.timeouts.Store(0)
	}
}

func (f *failures) list() []FailedRecord {
	if f == nil {
		return nil
	}
	return f.failed
}

func sendable(batch []*kgo.Record) bool {
	for _, r := range batch {
		if size(r) > MaxRecordBytes {
			return false
		}
	}
	return true
}

// refuse removes the records that are known to fail before they are sent, and those behind them.
func refuse(batch []*kgo.Record, f *failures) []*kgo.Record {
	good := make([]*kgo.Record, 0, len(batch))
	closed := map[topicPartition]bool{}
	for _, r := range batch {
		at := topicPartition{r.Topic, r.Partition}
		switch {
		case closed[at]:
			f.add(r, false, watermill.ErrBehind)
		case size(r) > MaxRecordBytes:
			closed[at] = true
			f.add(r, true, fmt.Errorf("%d bytes: %w", size(r), watermill.ErrTooLarge))
		default:
			good = append(good, r)
		}
	}
	return good
}

func size(r *kgo.Record) int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// send writes the records and waits for all of them. It returns nil if all are stored. After a failure
// that is not caused by a record it discards the client: the outcome of requests in flight is unknown,
// and a new client has a new producer id. The last request of the old client may still be written; its
// records are consecutive, in order, and are sent again anyway.
func (p *Publisher) send(ctx context.Context, batch []*kgo.Record) map[*kgo.Record]error {
	if len(batch) == 0 {
		return nil
	}
	producer, err := p.acquire()
	if err != nil {
		return sameError(batch, err)
	}
	done := make(chan kgo.ProduceResults, 1)
	go func() { done <- producer.client.ProduceSync(ctx, batch...) }()
	var results kgo.ProduceResults
	select {
	case results = <-done:
	case <-ctx.Done():
		p.discard(producer, nil)
		results = <-done
	}
	errs := collect(ctx, results)
	for _, err := range errs {
		if !permanent(err) {
			p.discard(producer, err)
			break
		}
	}
	// Another call may have discarded the client: its error says more than "client closed".
	if cause := producer.cause.Load(); cause != nil {
		for r, err := range errs {
			if errors.Is(err, kgo.ErrClientClosed) {
				errs[r] = *cause
			}
		}
	}
	return errs
}

func collect(ctx context.Context, results kgo.ProduceResults) map[*kgo.Record]error {
	var errs map[*kgo.Record]error
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		if errs == nil {
			errs = make(map[*kgo.Record]error, len(results))
		}
		err := permission(r.Err, "Write on the topic "+r.Record.Topic)
		if ctx.Err() != nil && !permanent(err) {
			err = fmt.Errorf("no answer from the broker in time: %w", errors.Join(ctx.Err(), err))
		}
		errs[r.Record] = err
	}
	return errs
}

func sameError(batch []*kgo.Record, err error) map[*kgo.Record]error {
	errs := make(map[*kgo.Record]error, len(batch))
	for _, r := range batch {
		errs[r] = err
	}
	return errs
}

// byPartition groups the failed records, in order.
func byPartition(batch []*kgo.Record, errs map[*kgo.Record]error) map[topicPartition][]*kgo.Record {
	groups := map[topicPartition][]*kgo.Record{}
	for _, r := range batch {
		if errs[r] != nil {
			at := topicPartition{r.Topic, r.Partition}
			groups[at] = append(groups[at], r)
		}
	}
	return groups
}

// isolate finds the permanently refused records of a partition. The broker refuses a whole batch, so
// isolate sends the records again in halves, in order. It reports whether all of them were stored in the
// end.
func (p *Publisher) isolate(ctx context.Context, group []*kgo.Record, errs map[*kgo.Record]error, f *failures) bool {
	err := errs[group[0]]
	if !permanent(err) || ctx.Err() != nil {
		f.addAll(group, err)
		return false
	}
	if len(group) == 1 {
		f.add(group[0], true, err)
		return false
	}
	half := len(group) / 2
	if !p.resend(ctx, group[:half], f) {
		f.addAll(group[half:], watermill.ErrBehind)
		return false
	}
	return p.resend(ctx, group[half:], f)
}

func (p *Publisher) resend(ctx context.Context, group []*kgo.Record, f *failures) bool {
	errs := p.send(ctx, group)
	if errs == nil {
		return true
	}
	var failing []*kgo.Record
	for _, r := range group {
		if errs[r] != nil {
			failing = append(failing, r)
		}
	}
	return p.isolate(ctx, failing, errs, f)
}

// permanent reports whether an error is about the records, not about the state of the broker. A refused
// timestamp is not permanent: it is set when the record is sent, so a clock is wrong.
func permanent(err error) bool {
	for _, of := range []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.PolicyViolation} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}
