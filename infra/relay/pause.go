package relay

import (
	"context"
	"time"
)

// The pause after a failure doubles from firstPause to longestPause, which also
// bounds how long a pipe that is back stands idle.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// pauseAfter is between half and the whole of its step, so that what failed
// together does not come back together.
func pauseAfter(failures int, jitter func(time.Duration) time.Duration) time.Duration {
	step := min(firstPause<<min(max(failures-1, 0), 10), longestPause)
	return step/2 + jitter(step/2)
}

// sleep waits; false means that ctx ended.
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
