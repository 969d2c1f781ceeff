package pgpipe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
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

// Publish inserts a message as one record, or a batch of records, in one transaction: one row, or several
// if there are many records. Records have no offset, since a row holds several. A *watermill.PublishError
// names the records that can never be stored; then no record of the call is stored. The call ends early
// if the context of the first message ends.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	number, err := p.cfg.known(topic)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	records, err := watermill.ToPublish(number, msgs, p.cfg.MessageUUIDs)
	if err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	for i := range records {
		records[i].Offset = -1
	}
	if err := refuse(records); err != nil {
		return err
	}
	if number == events.TopicUsageCommands {
		nameUsage(records)
	}
	var frames []*frame
	for i := range records {
		if len(frames) == 0 || !frames[len(frames)-1].fits(&records[i]) {
			frames = append(frames, &frame{topic: topic})
		}
		frames[len(frames)-1].add(&records[i])
	}
	if err := p.insert(msgs[0].Context(), frames); err != nil {
		return allFailed(len(records), err)
	}
	return nil
}

// nameUsage gives messages with usage an id if their producer did not: a record of a row has no offset that names it. The id is
// stored, so a message that is delivered again has the same one, and the same content published again has another one.
func nameUsage(records []events.Record) {
	for i := range records {
		if r := &records[i]; metering.ProducerID(r) == "" {
			// before an empty one
			r.Headers = append([]events.Header{{Key: metering.HeaderMessageID, Value: []byte(uuid.NewString())}}, r.Headers...)
		}
	}
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
		if r := &records[i]; size(r) > MaxRecordBytes {
			failed = append(failed, watermill.FailedRecord{Index: i, Permanent: true,
				Err: fmt.Errorf("%d bytes: %w", size(r), watermill.ErrTooLarge)})
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
	if p.cfg.Arrivals != nil {
		p.cfg.Arrivals.committed(frames[0].topic)
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
