package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// LowRatePublisher writes topics of low rate through watermill-kafka, idempotently and acknowledged by all
// in-sync replicas. It sends one record after the other in each partition, and the partitions of a call at
// the same time. It adds the errors of each record, and an end of the call even if a broker does not
// answer. It is safe for concurrent use.
type LowRatePublisher struct {
	cfg Config

	mu       sync.Mutex // also held while a producer connects
	producer *lowRateProducer
	closed   bool
	calls    sync.WaitGroup
	closing  sync.WaitGroup // discarded producers
}

// lowRateProducer is a watermill-kafka publisher that is discarded after a failure with an unknown outcome.
type lowRateProducer struct {
	publisher *wmkafka.Publisher
	cut       context.CancelFunc // closes its connections
}

// lowRateRetryBackoff is the pause before sarama repeats a request: while a leader is elected, or a new topic
// has none. The delivery timeout ends the repetitions.
const lowRateRetryBackoff = 100 * time.Millisecond

// NewLowRatePublisher returns a publisher. It connects to the brokers on the first publish.
func NewLowRatePublisher(cfg Config) (*LowRatePublisher, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	if _, err := producerConfig(&cfg); err != nil {
		return nil, err
	}
	return &LowRatePublisher{cfg: cfg}, nil
}

func producerConfig(cfg *Config) (*sarama.Config, error) {
	c, err := saramaConfig(cfg)
	if err != nil {
		return nil, err
	}
	c.Net.MaxOpenRequests = 1 // sarama is idempotent only then
	c.Net.ReadTimeout, c.Net.WriteTimeout = cfg.DeliveryTimeout, cfg.DeliveryTimeout
	c.Metadata.Timeout = cfg.DeliveryTimeout
	c.Producer.Idempotent = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Timeout = cfg.DeliveryTimeout
	c.Producer.MaxMessageBytes = maxBatchBytes
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.Retry.Max, c.Producer.Retry.Backoff = int(cfg.DeliveryTimeout/lowRateRetryBackoff), lowRateRetryBackoff
	c.Producer.Return.Successes = true
	return c, c.Validate()
}

// Publish writes a message as one record, or a batch of records, and waits until they are stored. A
// *PublishError names the records that are not stored. The call ends early if the context of the first
// message ends.
func (p *LowRatePublisher) Publish(topic string, msgs ...*message.Message) error {
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
	if !p.enter() {
		return fmt.Errorf("publish: %w", watermill.ErrClosed)
	}
	defer p.calls.Done()
	ctx, cancel := context.WithTimeout(msgs[0].Context(), p.cfg.DeliveryTimeout)
	defer cancel()
	return watermill.NewPublishError(p.send(ctx, p.cfg.TopicPrefix+topic, records), len(records))
}

// enter counts a call, so that Close waits for it.
func (p *LowRatePublisher) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.calls.Add(1)
	}
	return !p.closed
}

// send writes the records, sets their offsets, and returns the failures.
func (p *LowRatePublisher) send(ctx context.Context, topic string, records []events.Record) []FailedRecord {
	errs := make([]error, len(records))
	producer, err := p.acquire(ctx)
	if err != nil {
		for i := range records {
			records[i].Offset, errs[i] = -1, permission(err, "Write on the topic "+topic)
		}
		return failedRecords(errs)
	}
	defer context.AfterFunc(ctx, producer.cut)()
	var partitions sync.WaitGroup
	for _, indexes := range indexesByPartition(records) {
		partitions.Go(func() {
			var err error
			for _, i := range indexes {
				records[i].Offset = -1
				if errs[i] = err; err == nil {
					errs[i] = permission(producer.send(ctx, topic, &records[i]), "Write on the topic "+topic)
				}
				if errs[i] != nil {
					err = watermill.ErrBehind
				}
			}
		})
	}
	partitions.Wait()
	failed := failedRecords(errs)
	for _, f := range failed {
		if !f.Permanent && !errors.Is(f.Err, watermill.ErrBehind) {
			p.discard(producer)
			break
		}
	}
	return failed
}

func indexesByPartition(records []events.Record) map[int16][]int {
	indexes := map[int16][]int{}
	for i := range records {
		indexes[records[i].Partition] = append(indexes[records[i].Partition], i)
	}
	return indexes
}

func failedRecords(errs []error) (failed []FailedRecord) {
	for i, err := range errs {
		if err != nil {
			failed = append(failed, FailedRecord{Index: i, Permanent: errors.Is(err, watermill.ErrTooLarge) || refusedBySarama(err),
				Err: err})
		}
	}
	return failed
}

// refusedBySarama reports whether an error is about the record, not about the state of the broker.
func refusedBySarama(err error) bool {
	for _, of := range []error{sarama.ErrMessageSizeTooLarge, sarama.ErrInvalidRecord, sarama.ErrPolicyViolation} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// send writes one record and sets its offset.
func (p *lowRateProducer) send(ctx context.Context, topic string, r *events.Record) error {
	if n := recordSize(r); n > MaxRecordBytes {
		return fmt.Errorf("%d bytes: %w", n, watermill.ErrTooLarge)
	}
	sent := &sentRecord{record: r}
	msg := message.NewMessage("", r.Value)
	msg.SetContext(context.WithValue(ctx, sentKey{}, sent))
	if err := p.publisher.Publish(topic, msg); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	r.Offset = sent.message.Offset
	return nil
}

func recordSize(r *events.Record) int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

type sentKey struct{}

// sentRecord leads from a message to its record, and to sarama's message, which holds the offset.
type sentRecord struct {
	record  *events.Record
	message *sarama.ProducerMessage
}

// asItIs marshals the record of a message with its own key, headers and partition.
type asItIs struct{}

// Marshal implements watermill-kafka's interface.
func (asItIs) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	sent, ok := msg.Context().Value(sentKey{}).(*sentRecord)
	if !ok {
		return nil, errors.New("the message holds no record")
	}
	r := sent.record
	m := &sarama.ProducerMessage{Topic: topic, Partition: int32(r.Partition)}
	if r.Key != nil {
		m.Key = sarama.ByteEncoder(r.Key)
	}
	if r.Value != nil {
		m.Value = sarama.ByteEncoder(r.Value)
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
	}
	sent.message = m
	return m, nil
}

// acquire returns the producer, connected.
func (p *LowRatePublisher) acquire(ctx context.Context) (*lowRateProducer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.producer != nil {
		return p.producer, nil
	}
	c, err := producerConfig(&p.cfg)
	if err != nil {
		return nil, err
	}
	cutting, cut := context.WithCancel(context.Background())
	defer context.AfterFunc(ctx, cut)()
	c.Net.Proxy.Enable, c.Net.Proxy.Dialer = true, connections{cutting, &p.cfg}
	if err := mayProduce(p.cfg.Brokers, c); err != nil {
		cut()
		return nil, err
	}
	publisher, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{Brokers: p.cfg.Brokers, Marshaler: asItIs{}, OverwriteSaramaConfig: c},
		watermill.Logger(p.cfg.Logger))
	if err != nil {
		cut()
		return nil, fmt.Errorf("create a watermill-kafka publisher: %w", err)
	}
	p.producer = &lowRateProducer{publisher, cut}
	return p.producer, nil
}

// mayProduce asks for a producer id. sarama leaks a client if the brokers refuse one to a new producer.
func mayProduce(brokers []string, c *sarama.Config) error {
	client, err := sarama.NewClient(brokers, c)
	if err != nil {
		return fmt.Errorf("connect a watermill-kafka publisher: %w", err)
	}
	defer client.Close()
	answer, err := client.InitProducerID()
	if err == nil && unauthorized(answer.Err) {
		err = answer.Err
	}
	if err != nil {
		return fmt.Errorf("get a producer id: %w", err)
	}
	return nil
}

// discard closes a producer. Its pending records fail.
func (p *LowRatePublisher) discard(old *lowRateProducer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.producer != old {
		return
	}
	p.producer = nil
	old.cut()
	p.closing.Go(func() { _ = old.publisher.Close() })
}

// Close waits for the calls in flight, which end by the delivery timeout.
func (p *LowRatePublisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.calls.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing.Wait()
	if p.producer == nil {
		return nil
	}
	defer p.producer.cut()
	last := p.producer
	p.producer = nil
	return last.publisher.Close()
}
