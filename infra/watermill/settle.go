package watermill

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// The pause before a failed batch is sent again. The first pause is short, because most failures are a
// lost connection or a lock. The longest pause still lets a consumer notice within seconds that a
// database has recovered.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// quietStart is how long failures are retries of a start, not logged as errors unless they go on: partitions are being assigned, and tables are cold.
const quietStart = 30 * time.Second

// settle turns a handler's error into a Nack after a pause. It logs a failure of a streak, the first one after quietStart, and the
// end of the streak. It hides the error from the router, which would log each one.
type settle struct {
	logger *slog.Logger
	begun  time.Time

	mu      sync.Mutex
	streaks map[string]int  // failures since the last success, by handler
	logged  map[string]bool // whether a failure of the streak was logged as an error
}

func newSettle(logger *slog.Logger) *settle {
	return &settle{logger: logger, begun: time.Now(), streaks: map[string]int{}, logged: map[string]bool{}}
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
		// The message is settled now, so that the router's own Ack has no effect.
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
		delete(s.logged, name)
	}
}

// failed counts the failure and returns the pause that follows it.
func (s *settle) failed(ctx context.Context, name string, err error) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.streaks[name]
	if ctx.Err() != nil {
		return 0 // a stop is not a failure of the handler
	}
	s.streaks[name] = n + 1
	level := slog.LevelError
	if time.Since(s.begun) < quietStart {
		level = slog.LevelDebug
	}
	if !s.logged[name] {
		s.logger.Log(ctx, level, "handler failed; the batch will be retried until it succeeds", "handler", name, "error", err)
		s.logged[name] = level == slog.LevelError
	}
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
