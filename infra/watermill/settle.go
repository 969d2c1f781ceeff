package watermill

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/domain/retries"
)

// The pause before a failed batch is sent again. The first pause is short, because most failures are a
// lost connection or a lock. The longest pause still lets a consumer notice within seconds that a
// database has recovered.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// settle turns a handler's error into a Nack after a pause. It hides the error from the router, which would log
// each one.
type settle struct {
	log *retries.Log

	mu      sync.Mutex
	streaks map[string]int // failures since the last success, by handler
}

func newSettle(logger *slog.Logger) *settle {
	log := retries.New(logger, slog.LevelError, "handler failed; the batch will be retried until it succeeds", "handler works again")
	return &settle{log: log, streaks: map[string]int{}}
}

func (s *settle) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		name := message.HandlerNameFromCtx(msg.Context())
		out, err := h(msg)
		s.log.Report(msg.Context(), err, "handler", name)
		if err == nil {
			s.succeeded(name)
			return out, nil
		}
		pause := s.failed(msg.Context(), name)
		sleep(msg.Context(), pause)
		// The message is settled now, so that the router's own Ack has no effect.
		msg.Nack()
		return nil, nil
	}
}

func (s *settle) succeeded(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streaks, name)
}

// failed counts the failure and returns the pause that follows it.
func (s *settle) failed(ctx context.Context, name string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.streaks[name]
	if ctx.Err() != nil {
		return 0 // a stop is not a failure of the handler
	}
	s.streaks[name] = n + 1
	return pauseAfter(n)
}

// pauseAfter doubles with each failure. Jitter of one half keeps instances that failed together from
// retrying together.
func pauseAfter(failures int) time.Duration {
	d := min(firstPause<<min(failures, 10), longestPause)
	return d/2 + rand.N(d/2+1)
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-stopping(ctx):
	}
}
