package kafka

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/meterplex/meterplex/infra/watermill"
)

// A client that has lost its broker fails with another error at each request; only the first of each cause is logged.
func TestErrorsOfALowRateClientAreLoggedOnceForEachCause(t *testing.T) {
	var logged bytes.Buffer
	l := naming{watermill.Logger(slog.New(slog.NewTextHandler(&logged, nil))), "Read on the group g", &repeats{seen: map[string]time.Time{}}}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, err := range []error{
		sarama.Wrap(sarama.ErrOutOfBrokers, sarama.ErrNotConnected),
		sarama.Wrap(sarama.ErrOutOfBrokers, refused),
		sarama.ErrBrokerNotFound,
		&sarama.ConsumerError{Topic: "t", Partition: 3, Err: io.EOF},
		sarama.Wrap(sarama.ErrOutOfBrokers, sarama.ErrSASLAuthenticationFailed),
		fmt.Errorf("join: %w", sarama.ErrSASLAuthenticationFailed),
		&sarama.ConsumerError{Topic: "t", Partition: 1, Err: sarama.ErrGroupAuthorizationFailed},
		&sarama.ConsumerError{Topic: "t", Partition: 2, Err: sarama.ErrTopicAuthorizationFailed},
		&sarama.ConsumerError{Topic: "t", Partition: 1, Err: errors.New("of partition 1")},
		&sarama.ConsumerError{Topic: "t", Partition: 2, Err: errors.New("of partition 2")},
	} {
		l.Error("Sarama internal error", err, nil)
	}
	lines := strings.Split(strings.TrimSpace(logged.String()), "\n")
	for i, want := range []string{"broker not connected", "authentication failed: KAFKA_SASL_USERNAME", "needs the ACL Read on the group g", "of partition 1"} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Errorf("line %d of %d: want one with %q", i+1, len(lines), want)
		}
	}
	if len(lines) != 4 {
		t.Errorf("%d lines are logged, want one for each of four causes:\n%s", len(lines), logged.String())
	}
}
