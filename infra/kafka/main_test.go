package kafka_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The tests that run in parallel wait for brokers that are down, so more of them than processors do.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("4")
	}
	localtest.Main(m, localtest.NoLeaks())
}

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

func config(t testing.TB) kafka.Config {
	return configAt(t, kafkatest.Broker(t))
}

func configAt(t testing.TB, broker *localkafka.Broker) kafka.Config {
	return kafka.Config{Brokers: broker.Brokers(), TopicPrefix: kafkatest.TopicPrefix(t), Logger: logger()}
}

// ownBroker starts a broker for this test alone, which it may kill, stop and empty beside other tests.
func ownBroker(t testing.TB) *localkafka.Broker {
	t.Helper()
	return kafkatest.StartCluster(t, 1)[0]
}

func newPublisher(t testing.TB, cfg kafka.Config) *kafka.Publisher {
	t.Helper()
	p, err := kafka.NewPublisher(cfg)
	must.OK(t, err)
	return p
}

func newSubscriber(t testing.TB, cfg kafka.SubscriberConfig) *kafka.Subscriber {
	t.Helper()
	s, err := kafka.NewSubscriber(cfg)
	must.OK(t, err)
	return s
}

func newAdmin(t testing.TB, cfg kafka.Config) *kafka.Admin {
	t.Helper()
	a, err := kafka.NewAdmin(cfg)
	must.OK(t, err)
	t.Cleanup(a.Close)
	return a
}

func ensure(t testing.TB, cfg kafka.Config) *kafka.Admin {
	t.Helper()
	a := newAdmin(t, cfg)
	must.OK(t, a.Ensure(context.Background()))
	// Leftover partitions slow down the restart of a killed broker.
	t.Cleanup(func() {
		if err := a.DeleteTopics(context.Background()); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return a
}

// makeTopic creates one topic of the registry, at an eighth of the cost of Ensure.
func makeTopic(t testing.TB, cfg kafka.Config, topic events.Topic) *kafka.Admin {
	t.Helper()
	return makeTopicOf(t, cfg, topic, nil)
}

// makeTopicOf creates a topic with settings, and waits until the broker has it.
func makeTopicOf(t testing.TB, cfg kafka.Config, topic events.Topic, settings map[string]*string) *kafka.Admin {
	t.Helper()
	admin, name := clientOf(t, cfg.Brokers), cfg.TopicPrefix+topic.Name()
	create(t, admin, events.Partitions, settings, name)
	t.Cleanup(func() {
		if _, err := admin.DeleteTopics(context.Background(), name); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	a := newAdmin(t, cfg)
	for {
		states, err := a.Topics(context.Background())
		must.OK(t, err)
		if states[topic-1].Ready {
			return a
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func create(t testing.TB, admin *kadm.Client, partitions int32, settings map[string]*string, name string) {
	t.Helper()
	must.OK(t, tryCreate(admin, partitions, settings, name))
}

// tryCreate creates a topic. A broker with late heartbeats is fenced for a moment; meanwhile the creation
// fails.
func tryCreate(admin *kadm.Client, partitions int32, settings map[string]*string, name string) error {
	for end := time.Now().Add(testTimeout); ; time.Sleep(100 * time.Millisecond) {
		_, err := admin.CreateTopic(context.Background(), partitions, 1, settings, name)
		if !errors.Is(err, kerr.InvalidReplicationFactor) || time.Now().After(end) {
			return err
		}
	}
}

// client returns an admin client that is independent of the code under test.
func client(t testing.TB) *kadm.Client {
	t.Helper()
	return clientOf(t, kafkatest.Broker(t).Brokers())
}

func clientOf(t testing.TB, brokers []string) *kadm.Client {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DisableClientMetrics())
	must.OK(t, err)
	t.Cleanup(c.Close)
	return kadm.NewClient(c)
}

const partitions = 4

func pipe(t testing.TB, cfg kafka.Config) pipetest.Pipe {
	cfg.AllowAnyTopic, cfg.MessageUUIDs = true, true
	cfg.DeliveryTimeout = time.Minute // a busy broker may need longer than the default
	admin := client(t)
	return pipetest.Pipe{
		Partitions: partitions,
		Publisher:  func(t testing.TB) message.Publisher { return newPublisher(t, cfg) },
		Subscriber: func(t testing.TB, group string, maxRecords int, grace time.Duration) message.Subscriber {
			return newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: group, MaxRecords: maxRecords, CloseTimeout: grace})
		},
		CreateTopic: func(topic string) error {
			err := tryCreate(admin, partitions, nil, cfg.TopicPrefix+topic)
			if errors.Is(err, kerr.TopicAlreadyExists) {
				return nil
			}
			return err
		},
	}
}

// TestWatermillSuite runs Watermill's own tests with one record per message.
func TestWatermillSuite(t *testing.T) { pipetest.Suite(t, pipe(t, config(t)), 1) }

// TestWatermillSuiteBatched runs them with batches.
func TestWatermillSuiteBatched(t *testing.T) {
	tier.AtSize(t)
	pipetest.Suite(t, pipe(t, config(t)), 500)
}

func TestContract(t *testing.T) {
	cfg := config(t)
	ensure(t, cfg)
	pipetest.Contract(t, pipe(t, cfg))
}
