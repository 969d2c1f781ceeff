// Package kafka implements the message pipe on Apache Kafka, behind Watermill's interfaces. franz-go writes all
// topics and reads those of high rate: a Watermill message holds a batch of records. watermill-kafka reads topics of
// low rate: a message holds one record.
//
// The package does not interpret records. It does not deduplicate (consumers do, in the transaction of
// their write), creates topics only through Admin, and never drops a record: a failed publish is an
// error, and a record that was not acknowledged is delivered again.
package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Config configures the connection to the brokers.
type Config struct {
	Brokers     []string // host:port
	TopicPrefix string   // prefix of topic and group names
	TLS         *tls.Config
	Authorities func() *x509.CertPool // the roots of the next connection, by TLS; nil: those of TLS
	SASL        SASL
	ClientID    string // default: "meterplex"
	Logger      *slog.Logger

	// Replication is the replication factor of new topics. 0 means three if there are three brokers, else
	// one.
	Replication int16
	// DeliveryTimeout bounds a publish call. 0 means DefaultDeliveryTimeout. After consecutive timeouts
	// it grows, up to six times.
	DeliveryTimeout time.Duration
	// AllowAnyTopic accepts topics outside the registry. MessageUUIDs stores a message's UUID in a
	// header. Watermill's own suite needs both.
	AllowAnyTopic bool
	MessageUUIDs  bool
}

// SASL holds the client's credentials. The zero value disables authentication.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
	Username  string
	Password  string
}

// DefaultDeliveryTimeout is long enough for a leader election, and short enough that the relay learns of
// an outage before its lease expires.
const DefaultDeliveryTimeout = 10 * time.Second

const (
	dialTimeout = 3 * time.Second
	// metadataMinAge bounds how long a client sends requests to a former leader.
	metadataMinAge = 250 * time.Millisecond
)

func (c *Config) defaults() error {
	if len(c.Brokers) == 0 {
		return errors.New("kafka: no brokers configured")
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

// options are the options shared by all franz-go clients of this package.
func (c *Config) options(purpose string) ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.ClientID),
		kgo.Dialer(c.dial),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.RetryBackoffFn(backoff.After),
		kgo.WithHooks(newReachability(c.Logger, purpose)),
		// Client metrics cost a second at each close.
		kgo.DisableClientMetrics(),
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

// dial opens a connection, by TLS if it is configured. The clients themselves would trust the authorities of their start for ever.
func (c *Config) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	if c.TLS == nil {
		return dialer.DialContext(ctx, network, address)
	}
	config := c.TLS.Clone()
	if c.Authorities != nil {
		config.RootCAs = c.Authorities()
	}
	return (&tls.Dialer{NetDialer: &dialer, Config: config}).DialContext(ctx, network, address)
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
		return nil, fmt.Errorf("kafka: unknown SASL mechanism %q: expected PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", s.Mechanism)
	}
}

// backoff is the pause before a client repeats a request. It is short enough to find a recovered broker
// within a second.
var backoff = domain.Backoff{First: 200 * time.Millisecond, Longest: time.Second}
