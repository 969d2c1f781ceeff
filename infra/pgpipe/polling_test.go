package pgpipe

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// idlePolling returns the pause between polls of a subscription, of a process with arrivals or without (nil).
func idlePolling(ctx context.Context, arrivals *Arrivals) *polling {
	p := newPolling(&SubscriberConfig{
		Config:       Config{Arrivals: arrivals, Logger: slog.New(slog.DiscardHandler)},
		PollInterval: DefaultPollInterval, IdleInterval: DefaultIdleInterval,
	}, "usage.raw")
	p.ctx = ctx
	return p
}

// TestPausesOfAnIdlePipe: without rows the pauses grow up to the idle interval. Rows end one, but no sooner than the poll interval
// after its start.
func TestPausesOfAnIdlePipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var arrivals Arrivals
		p := idlePolling(t.Context(), &arrivals)
		paused := func(empty bool) time.Duration {
			began := time.Now()
			time.Sleep(p.HandleError(nil, empty, nil))
			return time.Since(began)
		}
		grow := func(after string) {
			t.Helper()
			for _, want := range []time.Duration{25, 50, 100, 200, 250, 250} {
				if got := paused(true); got != want*time.Millisecond {
					t.Errorf("%s: a pause of %v, want %v ms", after, got, int(want))
				}
			}
		}
		arrivesIn := func(d time.Duration, topic string) {
			time.AfterFunc(d, func() { arrivals.committed(topic) })
		}
		grow("start")
		arrivesIn(100*time.Millisecond, "usage.raw")
		if got := paused(true); got != 100*time.Millisecond {
			t.Errorf("rows arrive after 100 ms: a pause of %v", got)
		}
		grow("rows that are hidden")
		arrivesIn(time.Millisecond, "usage.raw")
		if got := paused(true); got != DefaultPollInterval {
			t.Errorf("rows arrive after 1 ms: a pause of %v, want %v", got, DefaultPollInterval)
		}
		if got := paused(false); got != 0 {
			t.Errorf("a pause of %v after rows", got)
		}
		grow("rows")
		arrivesIn(time.Millisecond, "usage.validated")
		if got := paused(true); got != DefaultIdleInterval {
			t.Errorf("rows of another topic: a pause of %v, want %v", got, DefaultIdleInterval)
		}
		arrivals.committed("usage.raw") // while a poll runs that does not see them yet
		if got := paused(true); got != DefaultPollInterval {
			t.Errorf("rows arrived during the poll: a pause of %v, want %v", got, DefaultPollInterval)
		}
	})
}

// TestPausesWithoutArrivals: a process that hears nothing of the rows of others polls as often as ever.
func TestPausesWithoutArrivals(t *testing.T) {
	p := idlePolling(t.Context(), nil)
	for range 5 {
		if got := p.HandleError(nil, true, nil); got != DefaultPollInterval {
			t.Errorf("a pause of %v, want %v", got, DefaultPollInterval)
		}
	}
}

// TestPauseEndsWithItsSubscription: a stop does not wait for an idle pause.
func TestPauseEndsWithItsSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		p := idlePolling(ctx, new(Arrivals))
		for range 5 {
			p.HandleError(nil, true, nil)
		}
		began := time.Now()
		time.AfterFunc(10*time.Millisecond, stop)
		if p.HandleError(nil, true, nil); time.Since(began) != 10*time.Millisecond {
			t.Errorf("waited for %v, want 10ms", time.Since(began))
		}
	})
}
