package watermill

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/retries"
)

// pauses precede each further attempt at a failed batch. The first one is short, because most failures are a
// lost connection or a lock. The longest one still lets a consumer notice within seconds that a
// database has recovered.
var pauses = domain.Backoff{First: 50 * time.Millisecond, Longest: 5 * time.Second}

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
	if ctx.Err() != nil {
		return 0 // a stop is not a failure of the handler
	}
	s.streaks[name]++
	return pauses.Jittered(s.streaks[name], rand.N)
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
