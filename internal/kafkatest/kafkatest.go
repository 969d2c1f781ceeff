// Package kafkatest provides a real Kafka to a test binary: one broker per binary, and a topic prefix per test.
// [localtest.Main] stops the broker. It is a package of its own, so that tests that need only PostgreSQL do not
// compile a Kafka client.
package kafkatest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/internal/localtest"
)

// shared is the binary's broker. A test binary is one process with one TestMain, so it is a package variable.
var shared struct {
	mu     sync.Mutex
	broker *localkafka.Broker
}

// Broker returns the binary's broker. The first call starts it. Without Java the test fails instead of
// being skipped: a suite that skips its broker does not test it.
func Broker(t testing.TB) *localkafka.Broker {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.broker != nil {
		return shared.broker
	}
	k, err := localkafka.Start(context.Background(), localkafka.Config{DataDir: localtest.Share(t, stop)})
	if err != nil {
		t.Fatal(err)
	}
	shared.broker = k
	return k
}

func stop(ctx context.Context) error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.broker == nil {
		return nil
	}
	if err := shared.broker.Stop(ctx); err != nil {
		return fmt.Errorf("stop Kafka: %w", err)
	}
	shared.broker = nil
	return nil
}

// TopicPrefix returns a unique prefix: "t", eight hexadecimal digits, a dot. Topics are not removed; they
// end with the broker.
func TopicPrefix(t testing.TB) string {
	t.Helper()
	return "t" + localtest.Unique() + "."
}
