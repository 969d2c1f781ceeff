package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// SubscriberConfig says what a group reads and in which portions.
type SubscriberConfig struct {
	Config
	Group string
	// MaxRecords bounds a batch, MaxRecordsPerPartition each partition's share of
	// it; what is left is the next batch's.
	MaxRecords             int // DefaultMaxRecords where 0
	MaxRecordsPerPartition int // MaxRecords where 0
	// CloseTimeout is how long Close lets a batch in flight be settled.
	CloseTimeout time.Duration // DefaultCloseTimeout where 0
}

// Defaults of a subscriber.
const (
	DefaultMaxRecords   = 2000
	DefaultCloseTimeout = 5 * time.Second
)

const (
	// nackPause keeps a handler that refuses at once from spinning.
	nackPause = 100 * time.Millisecond
	// commitEvery is how often acknowledged offsets are committed: a crash repeats
	// as much, and consumers know a record that they have seen.
	commitEvery = 250 * time.Millisecond
	// commitTimeout bounds the commit that a revoke and a close wait for.
	commitTimeout = 3 * time.Second
	// One consumer's buffers: a fetch holds at most so much, compressed, which is
	// some ten batches. One record that is larger comes by itself.
	fetchBytes          = 2 << 20
	fetchPartitionBytes = 256 << 10
	// fetchWait bounds how long a partition that was just assigned waits for a
	// fetch that was sent without it; a record ends the wait at once.
	fetchWait = 300 * time.Millisecond
	// A member that was killed gives its partitions back after sessionTimeout.
	sessionTimeout    = 10 * time.Second
	heartbeatInterval = 1 * time.Second
	rebalanceTimeout  = 30 * time.Second
)

// Subscriber reads topics as a member of a consumer group. A message is one
// batch, of one or more partitions, opened by Records; one is in flight for each
// Subscribe. Ack lets the offsets be committed, Nack sends the same batch again,
// for ever. A new group starts at the oldest record.
type Subscriber struct {
	cfg  SubscriberConfig
	opts []kgo.Opt
	open watermill.Subscriptions
}

// NewSubscriber makes a subscriber. It reaches for the brokers only when it
// subscribes.
func NewSubscriber(cfg SubscriberConfig) (*Subscriber, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	opts, err := cfg.options("group " + cfg.Group)
	if err != nil {
		return nil, err
	}
	s := &Subscriber{cfg: cfg, opts: append(opts,
		kgo.ConsumerGroup(cfg.TopicPrefix+cfg.Group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(commitEvery),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatInterval),
		kgo.RebalanceTimeout(rebalanceTimeout),
		kgo.FetchMaxWait(fetchWait),
		kgo.FetchMaxBytes(fetchBytes),
		kgo.FetchMaxPartitionBytes(fetchPartitionBytes),
		// A topic that was made anew is an error that only then comes to light.
		kgo.KeepRetryableFetchErrors(),
	)}
	return s, nil
}

func (c *SubscriberConfig) defaults() error {
	if err := c.Config.defaults(); err != nil {
		return err
	}
	if c.Group == "" {
		return errors.New("kafka: a subscriber without a group")
	}
	if c.MaxRecords <= 0 {
		c.MaxRecords = DefaultMaxRecords
	}
	if c.MaxRecordsPerPartition <= 0 {
		c.MaxRecordsPerPartition = c.MaxRecords
	}
	if c.CloseTimeout <= 0 {
		c.CloseTimeout = DefaultCloseTimeout
	}
	return nil
}

// Subscribe joins the group. The channel is closed after the end of ctx or Close,
// when the batch in flight was settled or given up.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	number, known := events.TopicOf(topic)
	if !known && !s.cfg.AllowAnyTopic {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, ErrUnknownTopic)
	}
	sub := &subscription{cfg: &s.cfg, opts: s.opts, number: number, topic: s.cfg.TopicPrefix + topic}
	if err := sub.connect(); err != nil {
		return nil, err
	}
	out, err := s.open.Start(ctx, topic, func(ctx context.Context, out chan<- *message.Message) {
		sub.delivery = watermill.Delivery{Out: out, Grace: s.cfg.CloseTimeout}
		sub.run(ctx)
	})
	if err != nil {
		sub.leave()
	}
	return out, err
}

// Close ends all subscriptions and waits until they left their group.
func (s *Subscriber) Close() error { return s.open.Close() }

// Records opens a message of a Subscriber.
func Records(msg *message.Message) ([]events.Record, error) { return watermill.Records(msg) }
