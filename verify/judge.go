package verify

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Outcomes of checks that do not all hold.
var (
	ErrDoesNotHold  = errors.New("a check does not hold")
	ErrUndetermined = errors.New("a check is undetermined")
)

// Judge returns the outcome of checks: nil, ErrDoesNotHold, or ErrUndetermined with the first such check. A check that was skipped counts
// as undetermined if all were requested.
func Judge(checks []Check, all bool) (skipped int, outcome error) {
	for _, one := range checks {
		switch {
		case !one.Looked:
			skipped++
		case one.Holds != nil && !*one.Holds:
			outcome = ErrDoesNotHold
		case one.Holds == nil && outcome == nil:
			outcome = fmt.Errorf("%w: %s: %s", ErrUndetermined, one.Name, one.Figures)
		}
	}
	if outcome == nil && skipped > 0 && all {
		outcome = fmt.Errorf("%w: %d checks were skipped", ErrUndetermined, skipped)
	}
	return skipped, outcome
}

// Brokers returns the options of a client of Kafka. Mechanism is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, or "": no login; secure is nil
// without TLS.
func Brokers(brokers []string, secure *tls.Config, mechanism, user, password string) []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.ClientID("meterplex-verify"), kgo.DisableClientMetrics(),
		kgo.DialTimeout(3 * time.Second),
		kgo.FetchMaxBytes(8 << 20), kgo.FetchMaxPartitionBytes(2 << 20)}
	if secure != nil {
		opts = append(opts, kgo.DialTLSConfig(secure))
	}
	switch mechanism {
	case "PLAIN":
		return append(opts, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-256":
		return append(opts, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		return append(opts, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	}
	return opts
}
