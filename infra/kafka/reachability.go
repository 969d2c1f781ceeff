package kafka

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/domain/retries"
)

// reachability logs once when a broker becomes unreachable and once when it is reachable again. A client
// connects many times per second.
type reachability struct {
	log     *retries.Log
	purpose string
}

func newReachability(logger *slog.Logger, purpose string) *reachability {
	return &reachability{retries.New(logger, slog.LevelWarn, "Kafka broker unreachable; will retry", "Kafka broker reachable again"),
		purpose}
}

// OnBrokerConnect implements franz-go's hook.
func (r *reachability) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed) {
		return
	}
	if err != nil {
		err = explained(err)
	}
	r.log.Report(context.Background(), err, "broker", net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port))), "for", r.purpose)
}
