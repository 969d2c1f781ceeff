package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// lowRate is watermill-kafka's subscriber as it is: one record at a time for each
// partition. What is ours is the configuration, and that a broker which cannot be
// reached when the subscription starts is waited for like one that goes later.
type lowRate struct {
	cfg   SubscriberConfig
	inner *wmkafka.Subscriber
	open  watermill.Subscriptions
}

const lowRateRetry = time.Second

// NewLowRateSubscriber reads topics of low rate through watermill-kafka. A message
// is a batch of one record, so that consumers see the same thing on every pipe.
func NewLowRateSubscriber(cfg SubscriberConfig) (message.Subscriber, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	client, err := saramaConfig(&cfg.Config)
	if err != nil {
		return nil, err
	}
	inner, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers:               cfg.Brokers,
		ConsumerGroup:         cfg.TopicPrefix + cfg.Group,
		Unmarshaler:           oneRecord{cfg.TopicPrefix},
		OverwriteSaramaConfig: client,
		NackResendSleep:       nackPause,
		ReconnectRetrySleep:   lowRateRetry,
	}, watermill.Logger(cfg.Logger))
	if err != nil {
		return nil, fmt.Errorf("make a subscriber of watermill-kafka: %w", err)
	}
	return &lowRate{cfg: cfg, inner: inner}, nil
}

func saramaConfig(cfg *Config) (*sarama.Config, error) {
	c := wmkafka.DefaultSaramaSubscriberConfig()
	c.ClientID = cfg.ClientID
	c.Net.DialTimeout = dialTimeout
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Interval = commitEvery
	c.Consumer.Group.Session.Timeout = sessionTimeout
	c.Consumer.Group.Heartbeat.Interval = heartbeatInterval
	c.Consumer.Group.Rebalance.Timeout = rebalanceTimeout
	if cfg.TLS != nil {
		c.Net.TLS.Enable, c.Net.TLS.Config = true, cfg.TLS
	}
	if err := saramaSASL(c, &cfg.SASL); err != nil {
		return nil, err
	}
	return c, nil
}

// Subscribe returns at once; the group is joined as soon as a broker answers.
func (s *lowRate) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if _, known := events.TopicOf(topic); !known && !s.cfg.AllowAnyTopic {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, ErrUnknownTopic)
	}
	return s.open.Start(ctx, topic, func(ctx context.Context, out chan<- *message.Message) { s.forward(ctx, topic, out) })
}

func (s *lowRate) forward(ctx context.Context, topic string, out chan<- *message.Message) {
	in := s.connect(ctx, s.cfg.TopicPrefix+topic)
	if in == nil {
		return
	}
	for msg := range in {
		select {
		case out <- msg:
		case <-ctx.Done(): // watermill-kafka sees it too and closes in
		}
	}
}

func (s *lowRate) connect(ctx context.Context, topic string) <-chan *message.Message {
	for failures := 0; ; failures++ {
		in, err := s.inner.Subscribe(ctx, topic)
		if err == nil {
			if failures > 0 {
				s.cfg.Logger.Info("reading from Kafka works again", slog.String("topic", topic))
			}
			return in
		}
		if failures == 0 {
			s.cfg.Logger.Warn("reading from Kafka fails; trying again until it works", "topic", topic, "error", err)
		}
		if !pause(ctx, lowRateRetry) {
			return nil
		}
	}
}

// Close ends all subscriptions and waits for them.
func (s *lowRate) Close() error {
	// watermill-kafka ends with the subscriptions' contexts; Close waits for both.
	_ = s.open.Close()
	if err := s.inner.Close(); err != nil {
		return fmt.Errorf("close the subscriber of watermill-kafka: %w", err)
	}
	return nil
}

// oneRecord frames a record for itself. It takes everything: an error would end
// the claim of the partition.
type oneRecord struct{ prefix string }

// Unmarshal is watermill-kafka's interface.
func (o oneRecord) Unmarshal(m *sarama.ConsumerMessage) (*message.Message, error) {
	var topic events.Topic
	if len(m.Topic) > len(o.prefix) {
		topic, _ = events.TopicOf(m.Topic[len(o.prefix):])
	}
	headers := make([]events.Header, 0, len(m.Headers))
	for _, h := range m.Headers {
		headers = append(headers, events.Header{Key: string(h.Key), Value: h.Value})
	}
	return watermill.Batch([]events.Record{{
		Topic: topic, Partition: int16(m.Partition), Offset: m.Offset,
		Key: m.Key, Value: m.Value, Headers: headers,
	}}), nil
}

var errScramEnded = errors.New("kafka: the SCRAM conversation has ended")
