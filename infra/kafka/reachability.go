package kafka

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// reachability logs once when a broker becomes unreachable and once when it is reachable again. A client
// connects many times per second.
type reachability struct {
	logger  *slog.Logger
	purpose string

	mu   sync.Mutex
	away map[string]time.Time // address → unreachable since
}

func newReachability(logger *slog.Logger, purpose string) *reachability {
	return &reachability{logger: logger, purpose: purpose, away: map[string]time.Time{}}
}

// OnBrokerConnect implements franz-go's hook.
func (r *reachability) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed) {
		return
	}
	address := net.JoinHostPort(meta.Host, itoa(meta.Port))
	r.mu.Lock()
	defer r.mu.Unlock()
	since, away := r.away[address]
	switch {
	case err != nil && !away:
		r.away[address] = time.Now()
		r.logger.Warn("Kafka broker unreachable; will retry", "broker", address, "for", r.purpose, "error", explained(err))
	case err == nil && away:
		delete(r.away, address)
		r.logger.Info("Kafka broker reachable again", "broker", address, "for", r.purpose, "after", time.Since(since).Round(time.Millisecond))
	}
}
