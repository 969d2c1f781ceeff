package relay

import (
	"context"
	"time"
)

// The pause after a failure doubles from firstPause to longestPause. longestPause also bounds the idle
// time after the pipe has recovered.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// pauseAfter returns between half of the pause and all of it, so that instances that failed together do
// not retry together.
func pauseAfter(failures int, jitter func(time.Duration) time.Duration) time.Duration {
	step := min(firstPause<<min(max(failures-1, 0), 10), longestPause)
	return step/2 + jitter(step/2)
}

// sleep reports false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
