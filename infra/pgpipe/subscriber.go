package pgpipe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/infra/watermill"
)

// SubscriberConfig says what a group reads and in which portions.
type SubscriberConfig struct {
	Config
	Group string
	// MaxRecords bounds a batch; a row with more is handed out in portions.
	MaxRecords   int           // DefaultMaxRecords where 0
	PollInterval time.Duration // DefaultPollInterval where 0
	// CloseTimeout is how long Close lets a batch in flight be settled.
	CloseTimeout time.Duration // DefaultCloseTimeout where 0
}

// Defaults of a subscriber.
const (
	DefaultMaxRecords = 1000
	// DefaultPollInterval: an idle poll is one read-only statement.
	DefaultPollInterval = 25 * time.Millisecond
	DefaultCloseTimeout = 5 * time.Second
)

const (
	// nackPause keeps a handler that refuses at once from spinning.
	nackPause = 100 * time.Millisecond
	// retryPause follows an error of the database.
	retryPause = 500 * time.Millisecond
	// ackDeadline: a row is not given out a second time while its handler runs;
	// watermill-sql wants a bound and gives the row out again after it.
	ackDeadline = time.Hour
)

// Subscriber reads topics as a consumer group. A message is one batch, opened by
// watermill.Records; one is in flight for each Subscribe, and one for the whole
// group and topic. Ack moves the group on, Nack sends the same batch again, for
// ever. A new group starts at the oldest row.
type Subscriber struct {
	cfg  SubscriberConfig
	open watermill.Subscriptions
}

// NewSubscriber makes a subscriber.
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
		return errors.New("pgpipe: a subscriber without a group")
	}
	if c.MaxRecords <= 0 {
		c.MaxRecords = DefaultMaxRecords
	}
	if c.PollInterval <= 0 {
		c.PollInterval = DefaultPollInterval
	}
	if c.CloseTimeout <= 0 {
		c.CloseTimeout = DefaultCloseTimeout
	}
	return nil
}

// Subscribe returns at once; a database that does not answer is waited for. The
// channel is closed after the end of ctx or Close, when the batch in flight was
// settled or given up.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if _, err := s.cfg.known(topic); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return s.open.Start(ctx, topic, func(ctx context.Context, out chan<- *message.Message) {
		sub := &subscription{
			cfg: &s.cfg, topic: topic, delivery: watermill.Delivery{Out: out, Grace: s.cfg.CloseTimeout},
			errors: &polling{logger: s.cfg.Logger, topic: topic, group: s.cfg.Group, interval: s.cfg.PollInterval},
		}
		sub.run(ctx)
	})
}

// Close ends all subscriptions and waits for them.
func (s *Subscriber) Close() error { return s.open.Close() }
