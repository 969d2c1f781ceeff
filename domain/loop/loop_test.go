package loop

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestALoopLooksAtOnceAtItsTimeAndAtEachHint: a failed look does not change that, and is logged.
func TestALoopLooksAtOnceAtItsTimeAndAtEachHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, wake, logged := time.Now(), NewHint(), &bytes.Buffer{}
		ctx, stop := context.WithCancel(t.Context())
		l := Loop{Every: time.Minute, Wake: wake, Logger: slog.New(slog.NewTextHandler(logged, nil)), Failed: "cannot look; will retry"}
		var looks []time.Duration
		ended := make(chan error)
		go func() {
			ended <- l.RunPaced(ctx, func(context.Context) (time.Duration, error) {
				looks = append(looks, time.Since(began))
				switch len(looks) {
				case 2:
					return 0, errors.New("away")
				case 3:
					wake.Notify() // during a look: it is not lost, and two stand for one
					wake.Notify()
				case 4:
					return time.Second, nil
				}
				return 0, nil
			})
		}()
		time.Sleep(2*time.Minute + 11*time.Second)
		wake.Notify()
		synctest.Wait()
		want := []time.Duration{0, time.Minute, 2 * time.Minute, 2 * time.Minute, 2*time.Minute + time.Second,
			2*time.Minute + 11*time.Second}
		if !slices.Equal(looks, want) {
			t.Errorf("it looked after %s, want %s", looks, want)
		}
		if n := strings.Count(logged.String(), "cannot look; will retry"); n != 1 || !strings.Contains(logged.String(), "error=away") {
			t.Errorf("logged %q", logged)
		}
		stop()
		if err := <-ended; err != nil || len(looks) != len(want) {
			t.Errorf("it ended with %v after %d looks", err, len(looks))
		}
		if err := l.Run(ctx, func(context.Context) error { t.Error("it looked after the end"); return nil }); err != nil {
			t.Error(err)
		}
	})
}

// TestBatchesRestAndEndBetweenTwo: work without an end leaves half of the time to others, and stops with its context.
func TestBatchesRestAndEndBetweenTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		for _, c := range []struct {
			batches   int // the last one reports that no more is left
			fails     int
			stops     time.Duration
			ran       int
			took      time.Duration
			wantError error
		}{
			{batches: 1, ran: 1, took: time.Second},
			{batches: 3, ran: 3, took: 5 * time.Second},
			{batches: 3, fails: 2, ran: 2, took: 3 * time.Second, wantError: away},
			{batches: 9, stops: 3500 * time.Millisecond, ran: 2, took: 3500 * time.Millisecond, wantError: context.DeadlineExceeded},
		} {
			ctx, cancel := t.Context(), func() {}
			if c.stops > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.stops)
			}
			began, ran := time.Now(), 0
			err := Batches(ctx, func() (bool, error) {
				time.Sleep(time.Second)
				if ran++; ran == c.fails {
					return true, away
				}
				return ran < c.batches, nil
			})
			if cancel(); ran != c.ran || time.Since(began) != c.took || !errors.Is(err, c.wantError) {
				t.Errorf("%+v: %d batches in %s: %v", c, ran, time.Since(began), err)
			}
		}
	})
}
