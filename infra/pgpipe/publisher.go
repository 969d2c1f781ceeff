package pgpipe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

const (
	// MaxRecordBytes is how large a record may be. A row may be 1 GB; a frame is
	// held in memory several times on its way.
	MaxRecordBytes = 4 << 20
	// A frame is cut at so many records or bytes, whatever comes first.
	maxFrameRecords = 1000
	maxFrameBytes   = 4 << 20
	// publishTimeout bounds a call, so that an outage comes back to the relay.
	publishTimeout = 10 * time.Second
)

// Publisher inserts frames. It is safe for use by several goroutines.
type Publisher struct {
	cfg Config

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// NewPublisher makes a publisher.
func NewPublisher(cfg Config) (*Publisher, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg}, nil
}

// frame is one row.
type frame struct {
	topic   string
	records []events.Record
	bytes   int
}

// PublishRecords inserts the records in one transaction: one row for each topic,
// more where they are many. It returns them with Offset -1, as rows hold several.
// A *watermill.PublishError says which ones alone can never be stored; then none
// of the call's records are.
func (p *Publisher) PublishRecords(ctx context.Context, records []events.Record) ([]events.Record, error) {
	if err := refuse(records); err != nil {
		return records, err
	}
	var frames []*frame
	open := map[events.Topic]*frame{}
	for i := range records {
		r := &records[i]
		r.Offset = -1
		f := open[r.Topic]
		if f == nil || !f.fits(r) {
			f = &frame{topic: r.Topic.Name()}
			open[r.Topic] = f
			frames = append(frames, f)
		}
		f.add(r)
	}
	if err := p.insert(ctx, frames); err != nil {
		return records, allFailed(len(records), err)
	}
	return records, nil
}

// Publish inserts one record for each message, as one row.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	number, err := p.cfg.known(topic)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	var frames []*frame
	for _, msg := range msgs {
		r, err := watermill.Record(number, msg, p.cfg.MessageUUIDs)
		if err != nil {
			return fmt.Errorf("publish to %s: %w", topic, err)
		}
		if len(frames) == 0 || !frames[len(frames)-1].fits(&r) {
			frames = append(frames, &frame{topic: topic})
		}
		frames[len(frames)-1].add(&r)
	}
	if err := p.insert(context.Background(), frames); err != nil {
		return allFailed(len(msgs), err)
	}
	return nil
}

func (f *frame) fits(r *events.Record) bool {
	return len(f.records) < maxFrameRecords && f.bytes+size(r) <= maxFrameBytes
}

func (f *frame) add(r *events.Record) {
	f.records = append(f.records, *r)
	f.bytes += size(r)
}

func size(r *events.Record) int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// refuse names what can never be stored; the others wait for it to be replaced,
// so that they keep their order.
func refuse(records []events.Record) error {
	var failed []watermill.FailedRecord
	for i := range records {
		switch r := &records[i]; {
		case r.Topic.Name() == "":
			failed = append(failed, watermill.FailedRecord{Index: i, Permanent: true, Err: watermill.ErrUnknownTopic})
		case size(r) > MaxRecordBytes:
			failed = append(failed, watermill.FailedRecord{Index: i, Permanent: true, Err: fmt.Errorf("%d bytes: %w", size(r), watermill.ErrTooLarge)})
		}
	}
	if len(failed) == 0 {
		return nil
	}
	bad := map[int]bool{}
	for _, f := range failed {
		bad[f.Index] = true
	}
	for i := range records {
		if !bad[i] {
			failed = append(failed, watermill.FailedRecord{Index: i, Err: watermill.ErrBehind})
		}
	}
	return watermill.NewPublishError(failed, len(records))
}

func allFailed(n int, err error) error {
	failed := make([]watermill.FailedRecord, n)
	for i := range failed {
		failed[i] = watermill.FailedRecord{Index: i, Err: err}
	}
	return watermill.NewPublishError(failed, n)
}

// insert writes the rows in one transaction, by watermill-sql's statement. A
// commit that was not answered is an error, and what is sent again then is there
// twice, which every consumer bears.
func (p *Publisher) insert(ctx context.Context, frames []*frame) error {
	if len(frames) == 0 {
		return nil
	}
	if !p.enter() {
		return fmt.Errorf("publish: %w", watermill.ErrClosed)
	}
	defer p.calls.Done()
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	tx, err := p.cfg.DB.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("publish to the database: %w", err)
	}
	defer tx.Rollback()
	for _, f := range frames {
		q, err := p.cfg.schema().InsertQuery(f.topic, message.Messages{watermill.Batch(f.records)})
		if err != nil {
			return fmt.Errorf("publish to %s: %w", f.topic, err)
		}
		if _, err := tx.ExecContext(ctx, q.Query, q.Args...); err != nil {
			return fmt.Errorf("publish to %s: %w", f.topic, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("publish to the database: %w", err)
	}
	return nil
}

func (p *Publisher) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.calls.Add(1)
	}
	return !p.closed
}

// Close waits for the calls in flight. The database is the caller's.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.calls.Wait()
	return nil
}
