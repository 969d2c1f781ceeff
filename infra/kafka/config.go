// Package kafka is the pipe over Apache Kafka behind Watermill's interfaces:
// franz-go for the hot path, where a message is a batch, and watermill-kafka as
// it is for topics of low rate.
//
// It carries records and knows nothing of what is in them. It dedupes nothing
// (consumers do, where the write is), creates topics only when asked by Admin,
// and never drops a record: what cannot be published is an error, what was not
// acknowledged is sent again.
package kafka

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Config says how to reach the brokers.
type Config struct {
	Brokers     []string // host:port
	TopicPrefix string   // before the names of topics and groups
	TLS         *tls.Config
	SASL        SASL
	ClientID    string // "meterplex" where empty
	Logger      *slog.Logger

	// Replication is how many copies of each record the topics are made with; 0: three
	// where there are three brokers, else one.
	Replication int16
	// DeliveryTimeout bounds a publish call; DefaultDeliveryTimeout where 0. After
	// calls in a row that it ended it grows, up to six times.
	DeliveryTimeout time.Duration
	// AllowAnyTopic takes topics that the registry does not have, MessageUUIDs
	// keeps a message's UUID as a header: Watermill's own suite needs both.
	AllowAnyTopic bool
	MessageUUIDs  bool
}

// SASL is how the client says who it is; the zero value: it does not.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
	Username  string
	Password  string
}

// DefaultDeliveryTimeout lets a broker elect a leader, and still brings an outage
// back to the relay soon enough for its lease.
const DefaultDeliveryTimeout = 10 * time.Second

const (
	dialTimeout = 3 * time.Second
	// metadataMinAge bounds how long a client keeps asking a leader that is gone.
	metadataMinAge = 250 * time.Millisecond
)

func (c *Config) defaults() error {
	if len(c.Brokers) == 0 {
		return errors.New("kafka: no brokers are configured")
	}
	if c.ClientID == "" {
		c.ClientID = "meterplex"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.DeliveryTimeout <= 0 {
		c.DeliveryTimeout = DefaultDeliveryTimeout
	}
	return nil
}

// options are what every franz-go client of ours has.
func (c *Config) options(purpose string) ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.ClientID),
		kgo.DialTimeout(dialTimeout),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.RetryBackoffFn(backoff),
		kgo.WithHooks(newReachability(c.Logger, purpose)),
		// The broker's metrics of clients cost a second at each close.
		kgo.DisableClientMetrics(),
	}
	if c.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS))
	}
	mechanism, err := c.SASL.mechanism()
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

func (s *SASL) mechanism() (sasl.Mechanism, error) {
	switch s.Mechanism {
	case "":
		return nil, nil
	case "PLAIN":
		return plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha512Mechanism(), nil
	default:
		return nil, fmt.Errorf("kafka: SASL mechanism %q is not known: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", s.Mechanism)
	}
}

// backoff is how long a client waits before it tries a request again: short
// enough that a broker that is back is found within a second.
func backoff(failures int) time.Duration {
	return min(100*time.Millisecond<<min(failures, 4), time.Second)
}
