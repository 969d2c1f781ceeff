package kafka

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// The errors and metadata of publishing are the same for every pipe.
type (
	// PublishError names the failed records of a call.
	PublishError = watermill.PublishError
	// FailedRecord is one failed record.
	FailedRecord = watermill.FailedRecord
)

// Metadata of a published message; see package watermill.
const (
	MetadataPartition = watermill.MetadataPartition
	MetadataKey       = watermill.MetadataKey
)

// ErrUnknownTopic means that a topic is not in the registry.
var ErrUnknownTopic = watermill.ErrUnknownTopic

const (
	// MaxRecordBytes bounds the size of a record: key, value and headers.
	MaxRecordBytes = maxBatchBytes - 64<<10
	// maxBatchBytes bounds an uncompressed batch of one partition.
	maxBatchBytes = 4 << 20
	// maxBuffered exceeds the records that the relay has in flight, so that no call waits for the records
	// of another.
	maxBuffered = 1 << 17
	// linger lets the records of one call share a request. The client's default of 10 ms was most of a
	// hop's latency, and a call is already a batch.
	linger = time.Millisecond
)

// Publisher writes records idempotently, acknowledged by all in-sync replicas. It is safe for concurrent
// use.
type Publisher struct {
	cfg  Config
	opts []kgo.Opt

	timeouts atomic.Int32 // consecutive calls that reached the delivery timeout

	mu       sync.Mutex
	producer *producer // nil: the next call creates one
	closed   bool
	calls    sync.WaitGroup
}

// producer is a client that is discarded after a failure with an unknown outcome: its sequence numbers,
// buffers and topic ids are no longer valid.
type producer struct {
	client *kgo.Client
	once   sync.Once
	cause  atomic.Pointer[error] // of the discard, if it is a missing right or a refused connection
}

func (p *producer) close() { p.once.Do(p.client.Close) }

// NewPublisher returns a publisher. It connects to the brokers on the first publish.
func NewPublisher(cfg Config) (*Publisher, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	opts, err := cfg.options("publishing")
	if err != nil {
		return nil, err
	}
	p := &Publisher{cfg: cfg}
	p.opts = append(opts,
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(maxBatchBytes),
		kgo.MaxBufferedRecords(maxBuffered),
		kgo.ProducerLinger(linger),
		kgo.ProduceRequestTimeout(cfg.DeliveryTimeout),
		kgo.RequestTimeoutOverhead(cfg.DeliveryTimeout),
	)
	return p, nil
}

// Publish writes a message as one record, or a batch of records, in one produce call, and waits until they
// are stored. A *PublishError names the records that are not stored. Records of one partition are always
// stored in order. The call ends early if the context of the first message ends.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	number, known := events.TopicOf(topic)
	if !known && !p.cfg.AllowAnyTopic {
		return fmt.Errorf("publish to %s: %w", topic, ErrUnknownTopic)
	}
	records, err := watermill.ToPublish(number, msgs, p.cfg.MessageUUIDs)
	if err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	batch := clientRecords(p.cfg.TopicPrefix+topic, records)
	failed := p.produce(msgs[0].Context(), batch)
	for i := range batch {
		records[i].Offset = batch[i].Offset
	}
	for _, f := range failed {
		records[f.Index].Offset = -1
	}
	return watermill.NewPublishError(failed, len(records))
}

// clientRecords converts to franz-go's records.
func clientRecords(topic string, records []events.Record) []*kgo.Record {
	backing := make([]kgo.Record, len(records))
	batch := make([]*kgo.Record, len(records))
	for i := range records {
		r := &records[i]
		backing[i] = kgo.Record{
			Topic: topic, Key: r.Key, Value: r.Value, Partition: int32(r.Partition), Headers: clientHeaders(r.Headers),
		}
		batch[i] = &backing[i]
	}
	return batch
}

// enter counts a call, so that Close waits for it.
func (p *Publisher) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.calls.Add(1)
	}
	return !p.closed
}

func (p *Publisher) acquire() (*producer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.producer != nil {
		return p.producer, nil
	}
	client, err := kgo.NewClient(p.opts...)
	if err != nil {
		return nil, fmt.Errorf("create a Kafka client: %w", err)
	}
	p.producer = &producer{client: client}
	return p.producer, nil
}

// discard closes a producer. Its pending records fail, by the same cause.
func (p *Publisher) discard(old *producer, cause error) {
	if unauthorized(cause) || refusalOf(cause).reason != "" {
		old.cause.CompareAndSwap(nil, &cause)
	}
	p.mu.Lock()
	if p.producer == old {
		p.producer = nil
	}
	p.mu.Unlock()
	old.close()
}

// Close waits for the calls in flight, which end by the delivery timeout.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.calls.Wait()
	p.mu.Lock()
	last := p.producer
	p.producer = nil
	p.mu.Unlock()
	if last != nil {
		last.close()
	}
	return nil
}
