package domain

import (
	"testing"
	"time"
)

func TestABackoffDoublesUpToItsBound(t *testing.T) {
	least, most := func(time.Duration) time.Duration { return 0 }, func(d time.Duration) time.Duration { return d - 1 }
	b := Backoff{First: time.Second, Longest: 5 * time.Minute}
	for n := range 100 {
		want := min(time.Second<<min(n, 30), 5*time.Minute)
		if got := b.After(n + 1); got != want {
			t.Errorf("after %d failures it waits %s, want %s", n+1, got, want)
		}
		if from, to := b.Jittered(n+1, least), b.Jittered(n+1, most); from != want/2 || to != want-1 {
			t.Errorf("after %d failures it waits between %s and %s of %s", n+1, from, to, want)
		}
	}
	if got := b.After(0); got != time.Second {
		t.Errorf("without a failure it waits %s", got)
	}
}
