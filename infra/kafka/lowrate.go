package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// lowRate is watermill-kafka's subscriber as it is: one record at a time for each
// partition. What is ours is the configuration, that a broker which cannot be
// reached when the subscription starts is waited for like one that goes later, and that
// one which says nothing holds up no stop.
type lowRate struct {
	cfg  SubscriberConfig
	open watermill.Subscriptions
}

const (
	lowRateRetry = time.Second
	// leaveTime is what a subscription has to tell the brokers that it ends.
	leaveTime = 3 * time.Second
)

// NewLowRateSubscriber reads topics of low rate through watermill-kafka. A message
// is a batch of one record, so that consumers see the same thing on every pipe.
func NewLowRateSubscriber(cfg SubscriberConfig) (message.Subscriber, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	s := &lowRate{cfg: cfg}
	inner, err := s.inner(lines{context.Background()})
	if err != nil {
		return nil, err
	}
	return s, inner.Close()
}

// inner is the subscriber of one subscription, on lines of its own.
func (s *lowRate) inner(own lines) (*wmkafka.Subscriber, error) {
	client, err := saramaConfig(&s.cfg.Config)
	if err != nil {
		return nil, err
	}
	client.Net.Proxy.Enable, client.Net.Proxy.Dialer = true, own
	inner, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers:               s.cfg.Brokers,
		ConsumerGroup:         s.cfg.TopicPrefix + s.cfg.Group,
		Unmarshaler:           oneRecord{s.cfg.TopicPrefix},
		OverwriteSaramaConfig: client,
		NackResendSleep:       nackPause,
		ReconnectRetrySleep:   lowRateRetry,
	}, watermill.Logger(s.cfg.Logger))
	if err != nil {
		return nil, fmt.Errorf("make a subscriber of watermill-kafka: %w", err)
	}
	return inner, nil
}

// lines are connections to brokers that can be cut together, by ending the context: the
// client waits minutes for a broker that takes connections and says nothing.
type lines struct{ context.Context }

// Dial implements the dialer of sarama.
func (l lines) Dial(network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(l, network, address)
	if err != nil {
		return nil, err
	}
	return &line{conn, context.AfterFunc(l, func() { _ = conn.Close() })}, nil
}

type line struct {
	net.Conn
	forget func() bool
}

func (l *line) Close() error {
	l.forget()
	return l.Conn.Close()
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
	cutting, cut := context.WithCancel(context.Background())
	defer cut()
	inner, err := s.inner(lines{cutting})
	if err != nil { // of the configuration, which was looked at before
		s.cfg.Logger.Error("reading from Kafka is not possible", "topic", topic, "error", err)
		return
	}
	defer context.AfterFunc(ctx, func() { time.AfterFunc(leaveTime, cut) })()
	in := s.connect(ctx, inner, s.cfg.TopicPrefix+topic)
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

func (s *lowRate) connect(ctx context.Context, inner *wmkafka.Subscriber, topic string) <-chan *message.Message {
	for failures := 0; ; failures++ {
		in, err := inner.Subscribe(ctx, topic)
		if err == nil {
			if failures > 0 {
				s.cfg.Logger.Info("reading from Kafka works again", slog.String("topic", topic))
			}
			return in
		}
		if failures == 0 && ctx.Err() == nil {
			s.cfg.Logger.Warn("reading from Kafka fails; trying again until it works", "topic", topic, "error", err)
		}
		if !pause(ctx, lowRateRetry) {
			return nil
		}
	}
}

// Close ends all subscriptions and waits for them: watermill-kafka ends each with its
// context.
func (s *lowRate) Close() error { return s.open.Close() }

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
