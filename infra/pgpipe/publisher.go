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
	// MaxRecordBytes bounds the size of a record. A row may have 1 GB, but a frame is held in memory
	// several times on its way.
	MaxRecordBytes = 4 << 20
	// A frame ends at either bound.
	maxFrameRecords = 1000
	maxFrameBytes   = 4 << 20
	// publishTimeout bounds a call, so that the relay notices an outage.
	publishTimeout = 10 * time.Second
)

// Publisher inserts frames. It is safe for concurrent use.
type Publisher struct {
	cfg Config

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// NewPublisher returns a publisher.
func NewPublisher(cfg Config) (*Publisher, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg}, nil
}

// frame is the content of one row.
type frame struct {
	topic   string
	records []events.Record
	bytes   int
}

// PublishRecords inserts the records in one transaction: one row per topic, or several if the topic has
// many records. It returns the records with Offset -1, since a row holds several. A
// *watermill.PublishError names the records that can never be stored; then no record of the
// call is stored.
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

// Publish inserts one record per message, as one row.
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

// refuse returns the records that can never be stored. The others fail with ErrBehind to keep their
// order.
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

// insert writes the rows in one transaction, with watermill-sql's statement. A commit without an answer
// is an error. The repeated call may store duplicates, which every consumer skips.
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

// Close waits for the calls in flight. The caller closes the database.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.calls.Wait()
	return nil
}
