package pgpipe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/infra/watermill"
)

// SubscriberConfig configures a group and the size of its batches.
type SubscriberConfig struct {
	Config
	Group string
	// MaxRecords bounds a batch. A row with more records is delivered in several batches.
	MaxRecords   int           // 0: DefaultMaxRecords
	PollInterval time.Duration // 0: DefaultPollInterval
	// IdleInterval bounds the pause between polls of a process with Arrivals. 0: DefaultIdleInterval
	IdleInterval time.Duration
	// CloseTimeout bounds how long Close waits for the batch in flight.
	CloseTimeout time.Duration // 0: DefaultCloseTimeout
}

// Defaults of a subscriber.
const (
	DefaultMaxRecords = 1000
	// DefaultPollInterval can be short, because an idle poll is one read-only statement.
	DefaultPollInterval = 25 * time.Millisecond
	// DefaultIdleInterval is how much later a group may read a row that another process published.
	DefaultIdleInterval = 250 * time.Millisecond
	DefaultCloseTimeout = 5 * time.Second
)

const (
	// nackPause keeps a handler that fails immediately from spinning.
	nackPause = 100 * time.Millisecond
	// retryPause follows a database error.
	retryPause = 500 * time.Millisecond
	// ackDeadline: watermill-sql delivers a row again after this deadline. It is long, so that a row is
	// not delivered again while its handler runs.
	ackDeadline = time.Hour
)

// Subscriber reads topics as a consumer group. A message is one batch, decoded by watermill.Records. Each
// Subscribe, and each group per topic, has one message in flight. Ack advances the group, Nack sends the
// same batch again, without a limit. A new group starts at the oldest row.
type Subscriber struct {
	cfg  SubscriberConfig
	open watermill.Subscriptions
}

// NewSubscriber returns a subscriber.
func NewSubscriber(cfg SubscriberConfig) (*Subscriber, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	return &Subscriber{cfg: cfg}, nil
}

func (c *SubscriberConfig) defaults() error {
	if err := c.Config.defaults(); err != nil {
		return err
	}
	if c.Group == "" {
		return errors.New("pgpipe: subscriber without a group")
	}
	if c.MaxRecords <= 0 {
		c.MaxRecords = DefaultMaxRecords
	}
	if c.PollInterval <= 0 {
		c.PollInterval = DefaultPollInterval
	}
	if c.IdleInterval <= 0 {
		c.IdleInterval = DefaultIdleInterval
	}
	if c.CloseTimeout <= 0 {
		c.CloseTimeout = DefaultCloseTimeout
	}
	return nil
}

// Subscribe returns at once, even if the database is unreachable. The channel is closed after Close or
// the end of ctx, once the batch in flight is settled or abandoned.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if _, err := s.cfg.known(topic); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return s.open.Start(ctx, topic, func(ctx context.Context, out chan<- *message.Message) {
		sub := &subscription{
			cfg: &s.cfg, topic: topic, delivery: watermill.Delivery{Out: out, Grace: s.cfg.CloseTimeout},
			polls: newPolling(&s.cfg, topic),
		}
		sub.run(ctx)
	})
}

// Close ends all subscriptions and waits for them.
func (s *Subscriber) Close() error { return s.open.Close() }
