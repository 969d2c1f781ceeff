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

// reachability says once when a broker cannot be reached and once when it can be
// again. A client asks many times a second; a person wants to know twice.
type reachability struct {
	logger  *slog.Logger
	purpose string

	mu   sync.Mutex
	away map[string]time.Time // address → since when
}

func newReachability(logger *slog.Logger, purpose string) *reachability {
	return &reachability{logger: logger, purpose: purpose, away: map[string]time.Time{}}
}

// OnBrokerConnect is franz-go's hook.
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
		r.logger.Warn("Kafka broker cannot be reached; trying again until it can", "broker", address, "for", r.purpose, "error", err)
	case err == nil && away:
		delete(r.away, address)
		r.logger.Info("Kafka broker can be reached again", "broker", address, "for", r.purpose, "after", time.Since(since).Round(time.Millisecond))
	}
}
