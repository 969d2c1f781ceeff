package watermill

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// The pause before a batch that failed is sent again. The first is short because
// most failures are a lost connection or a lock; the longest still lets a consumer
// notice within seconds that a database is back.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// settle turns a handler's error into a Nack after a pause. It says so once for
// each streak of failures, and once more when the streak ends. It never lets the
// error through to the router, which would log each one.
type settle struct {
	logger *slog.Logger

	mu      sync.Mutex
	streaks map[string]int // failures since the last success, by handler
}

func newSettle(logger *slog.Logger) *settle {
	return &settle{logger: logger, streaks: map[string]int{}}
}

func (s *settle) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		name := message.HandlerNameFromCtx(msg.Context())
		out, err := h(msg)
		if err == nil {
			s.succeeded(name)
			return out, nil
		}
		pause := s.failed(msg.Context(), name, err)
		sleep(msg.Context(), pause)
		// The router's own Ack afterwards finds the message settled and does nothing.
		msg.Nack()
		return nil, nil
	}
}

func (s *settle) succeeded(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.streaks[name]; n > 0 {
		s.logger.Info("handler works again", "handler", name, "failures", n)
		delete(s.streaks, name)
	}
}

// failed counts the failure and gives the pause that follows it.
func (s *settle) failed(ctx context.Context, name string, err error) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.streaks[name]
	if ctx.Err() != nil {
		return 0 // asked to stop: no failure of the handler's own
	}
	s.streaks[name] = n + 1
	if n == 0 {
		s.logger.Error("handler failed; the batch is sent again until it succeeds", "handler", name, "error", err)
	}
	return pauseAfter(n)
}

// pauseAfter doubles with each failure; the jitter of one half keeps instances
// that failed together from coming back together.
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
