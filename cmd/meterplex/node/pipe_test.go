package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/meterplex/meterplex/infra/kafka"
)

type brokers struct{ says, ping error }

func (b brokers) Ping(context.Context) error               { return b.ping }
func (b brokers) Ensure(context.Context) error             { return b.says }
func (b brokers) Doubts(context.Context) ([]string, error) { return nil, b.says }

// TestP11_SlowBrokersDoNotEndTheStart: the service starts and ingests usage even if the
// brokers answer but do not create topics in time.
func TestP11_SlowBrokersDoNotEndTheStart(t *testing.T) {
	few := fmt.Errorf("%w: %w", kafka.ErrTooFewBrokers, kerr.InvalidReplicationFactor)
	for _, err := range []error{nil, context.DeadlineExceeded, kerr.RequestTimedOut, kerr.NotController, errors.New("connection reset"),
		few} {
		answered, ended := ensureTopics(t.Context(), brokers{says: err}, slog.New(slog.DiscardHandler))
		if ended != nil {
			t.Errorf("%v ended the start: %v", err, ended)
		}
		if answered != (err == nil) {
			t.Errorf("%v: answered %v; the start compares the topics with the log if they could be read", err, answered)
		}
	}
	unfit := fmt.Errorf("%w: 6 partitions", kafka.ErrTopicsUnfit)
	if _, err := ensureTopics(t.Context(), brokers{says: unfit}, slog.New(slog.DiscardHandler)); !errors.Is(err, unfit) {
		t.Errorf("topics that do not fit gave %v", err)
	}
	silent := brokers{says: unfit, ping: context.DeadlineExceeded} // fails the ping, so Ensure is not called
	if answered, err := ensureTopics(t.Context(), silent, slog.New(slog.DiscardHandler)); answered || err != nil {
		t.Errorf("a silent broker: answered %v, %v; the start must not wait for it a second time", answered, err)
	}
}
