package client

import (
	"errors"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 5, 4, 10, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "99999999999": 0,
		"Mon, 04 May 2026 10:00:30 GMT": 30 * time.Second, "Mon, 04 May 2026 09:00:00 GMT": 0,
	} {
		if got := retryAfter(in, now); got != want {
			t.Errorf("%q is %s, want %s", in, got, want)
		}
	}
	for n := range 100 {
		if d := backoff(n, errors.New("x")); d < 0 || d > longestWait {
			t.Errorf("wait %d is %s", n, d)
		}
	}
}
