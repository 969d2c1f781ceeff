package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
)

// lowRate is watermill-kafka's subscriber, which delivers one record at a time per partition. It adds our
// configuration, retries if no broker is reachable when the subscription starts, and stops even if a
// broker does not answer.
type lowRate struct {
	cfg  SubscriberConfig
	open watermill.Subscriptions
}

const (
	lowRateRetry = time.Second
	// leaveTime bounds the time to leave the group.
	leaveTime = 3 * time.Second
)

// NewLowRateSubscriber reads topics of low rate through watermill-kafka. A message is a batch of one
// record, so that consumers get the same format from every pipe.
func NewLowRateSubscriber(cfg SubscriberConfig) (message.Subscriber, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	s := &lowRate{cfg: cfg}
	inner, err := s.inner(connections{context.Background(), &cfg.Config})
	if err != nil {
		return nil, err
	}
	return s, inner.Close()
}

// inner returns the watermill-kafka subscriber of one subscription, with its own connections.
func (s *lowRate) inner(own connections) (*wmkafka.Subscriber, error) {
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
	}, naming{watermill.Logger(s.cfg.Logger), "Read on the group " + s.cfg.TopicPrefix + s.cfg.Group + " and its topic",
		&repeats{seen: map[string]time.Time{}}})
	if err != nil {
		return nil, fmt.Errorf("create a watermill-kafka subscriber: %w", err)
	}
	return inner, nil
}

// connections dials connections to brokers that are all closed when the context ends. Without it the
// client waits for minutes for a broker that accepts connections but does not answer.
type connections struct {
	context.Context
	cfg *Config
}

// Dial implements the dialer of sarama.
func (l connections) Dial(network, address string) (net.Conn, error) {
	conn, err := l.cfg.dial(l, network, address)
	if err != nil {
		return nil, err
	}
	return &connection{conn, context.AfterFunc(l, func() { _ = conn.Close() })}, nil
}

type connection struct {
	net.Conn
	forget func() bool
}

func (l *connection) Close() error {
	l.forget()
	return l.Conn.Close()
}

func saramaConfig(cfg *Config) (*sarama.Config, error) {
	c := wmkafka.DefaultSaramaSubscriberConfig()
	c.ClientID = cfg.ClientID
	c.Metadata.AllowAutoTopicCreation = false
	c.Net.DialTimeout = dialTimeout
	c.Consumer.MaxWaitTime = fetchWait
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Interval = commitEvery
	c.Consumer.Group.Session.Timeout = sessionTimeout
	c.Consumer.Group.Heartbeat.Interval = heartbeatInterval
	c.Consumer.Group.Rebalance.Timeout = rebalanceTimeout
	if err := saramaSASL(c, &cfg.SASL); err != nil {
		return nil, err
	}
	return c, nil
}

// Subscribe returns at once. The group is joined as soon as a broker answers.
func (s *lowRate) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if _, known := events.TopicOf(topic); !known && !s.cfg.AllowAnyTopic {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, ErrUnknownTopic)
	}
	return s.open.Start(ctx, topic, func(ctx context.Context, out chan<- *message.Message) { s.forward(ctx, topic, out) })
}

func (s *lowRate) forward(ctx context.Context, topic string, out chan<- *message.Message) {
	cutting, cut := context.WithCancel(context.Background())
	defer cut()
	inner, err := s.inner(connections{cutting, &s.cfg.Config})
	if err != nil { // cannot happen: the configuration was checked before
		s.cfg.Logger.Error("cannot read from Kafka", "topic", topic, "error", err)
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
		case <-ctx.Done(): // watermill-kafka sees the end of ctx as well and closes in
		}
	}
}

func (s *lowRate) connect(ctx context.Context, inner *wmkafka.Subscriber, topic string) <-chan *message.Message {
	for log := readsLog(s.cfg.Logger); ; {
		in, err := inner.Subscribe(ctx, topic)
		if err == nil {
			log.Report(ctx, nil, "topic", topic)
			return in
		}
		log.Report(ctx, permission(err, "Read on the topic "+topic+" and the group "+s.cfg.TopicPrefix+s.cfg.Group), "topic", topic)
		if !loop.Sleep(ctx, lowRateRetry) {
			return nil
		}
	}
}

// Close ends all subscriptions and waits for them. watermill-kafka ends each subscription with its
// context.
func (s *lowRate) Close() error { return s.open.Close() }

// oneRecord frames a single record. It accepts any record, because an error would end the claim of the
// partition.
type oneRecord struct{ prefix string }

// Unmarshal implements watermill-kafka's interface.
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
