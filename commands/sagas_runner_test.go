package commands

import (
	"testing"
	"time"
)

// A place rests after a step, so that many sagas at once leave time to requests: longer after a short step than after a long one, which a
// busy machine makes slow.
func TestAPlaceRestsAfterAStep(t *testing.T) {
	for _, c := range []struct {
		rests     int
		ran, want time.Duration
	}{
		{0, 0, 0},
		{0, 30 * time.Millisecond, 30 * time.Millisecond},
		{3, 10 * time.Millisecond, 30 * time.Millisecond},
		{3, 30 * time.Millisecond, 40 * time.Millisecond},
		{3, 60 * time.Millisecond, 60 * time.Millisecond},
		{3, time.Minute, time.Second},
	} {
		if got := (&SagaRunner{Rests: c.rests}).rest(c.ran); got != c.want {
			t.Errorf("%d times, after %s: %s, want %s", c.rests, c.ran, got, c.want)
		}
	}
}
