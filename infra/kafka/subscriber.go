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

// SubscriberConfig configures a group and the size of its batches.
type SubscriberConfig struct {
	Config
	Group string
	// MaxRecords bounds a batch, MaxRecordsPerPartition the records of each partition in it. The rest is
	// delivered in the next batch.
	MaxRecords             int // 0: DefaultMaxRecords
	MaxRecordsPerPartition int // 0: MaxRecords
	// CloseTimeout bounds how long Close waits for the batch in flight.
	CloseTimeout time.Duration // 0: DefaultCloseTimeout
}

// Defaults of a subscriber.
const (
	DefaultMaxRecords   = 2000
	DefaultCloseTimeout = 5 * time.Second
)

const (
	// nackPause keeps a handler that fails immediately from spinning.
	nackPause = 100 * time.Millisecond
	// commitEvery is the time between an acknowledgement and the commit of its offsets. After a crash the records of
	// that time are delivered again, and consumers skip them as duplicates.
	commitEvery = 250 * time.Millisecond
	// commitTimeout bounds the commit during revoke and close.
	commitTimeout = 3 * time.Second
	// Fetch limits of one consumer: about five compressed batches, whose decompressed records are most of the memory of a consumer that is
	// behind. A larger record is fetched alone.
	fetchBytes          = 1 << 20
	fetchPartitionBytes = 256 << 10
	// fetchWait bounds how long a newly assigned partition waits for a fetch that was sent without it. A
	// record ends the wait at once. Each idle group polls that often: 300 ms cost a broker a quarter more.
	fetchWait = time.Second
	// The partitions of a killed member are reassigned after sessionTimeout.
	sessionTimeout    = 10 * time.Second
	heartbeatInterval = 1 * time.Second
	rebalanceTimeout  = 30 * time.Second
)

// Subscriber reads topics as a member of a consumer group. A message is one batch from one or more
// partitions, decoded by Records. Each Subscribe has one message in flight. Ack commits the offsets, Nack
// sends the same batch again, without a limit. A new group starts at the oldest record.
type Subscriber struct {
	cfg  SubscriberConfig
	opts []kgo.Opt
	open watermill.Subscriptions
}

// NewSubscriber returns a subscriber. It connects to the brokers when it subscribes.
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
		kgo.AutoCommitInterval(time.Hour), // the committer commits; marks need the option
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatInterval),
		kgo.RebalanceTimeout(rebalanceTimeout),
		kgo.BlockRebalanceOnPoll(), // until the records of a poll are attributed to their assignments
		kgo.FetchMaxWait(fetchWait),
		kgo.FetchMaxBytes(fetchBytes),
		kgo.FetchMaxPartitionBytes(fetchPartitionBytes),
		// Without this option the client hides that a topic was deleted and created again.
		kgo.KeepRetryableFetchErrors(),
	)}
	return s, nil
}

func (c *SubscriberConfig) defaults() error {
	if err := c.Config.defaults(); err != nil {
		return err
	}
	if c.Group == "" {
		return errors.New("kafka: subscriber without a group")
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

// Subscribe joins the group. The channel is closed after Close or the end of ctx, once the batch in
// flight is settled or abandoned.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	number, known := events.TopicOf(topic)
	if !known && !s.cfg.AllowAnyTopic {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, ErrUnknownTopic)
	}
	sub := &subscription{cfg: &s.cfg, opts: s.opts, number: number, topic: s.cfg.TopicPrefix + topic, reads: readsLog(s.cfg.Logger)}
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

// Close ends all subscriptions and waits until they have left their group.
func (s *Subscriber) Close() error { return s.open.Close() }

// Records decodes a message of a Subscriber.
func Records(msg *message.Message) ([]events.Record, error) { return watermill.Records(msg) }
