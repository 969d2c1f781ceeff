package watermill_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a subscriber that sends each batch until it is acknowledged, like the pipes.
type source struct {
	batches [][]events.Record
	cancel  context.CancelFunc
	open    sync.WaitGroup
}

func (s *source) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	ctx, s.cancel = context.WithCancel(ctx)
	out := make(chan *message.Message)
	d := watermill.Delivery{Out: out, Grace: 5 * time.Second}
	s.open.Go(func() {
		defer close(out)
		for _, batch := range s.batches {
			for {
				outcome := d.Send(ctx, watermill.Batch(batch))
				if outcome == watermill.Acked {
					break
				}
				if outcome == watermill.Stopped {
					return
				}
			}
		}
		<-ctx.Done()
	})
	return out, nil
}

func (s *source) Close() error {
	s.cancel()
	s.open.Wait()
	return nil
}

// log is a buffer for concurrent writes.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func record(value string) events.Record {
	return events.Record{Topic: events.TopicUsageRaw, Value: []byte(value), Headers: []events.Header{}}
}

// run starts a router and returns a function that stops it.
func run(t *testing.T, router *message.Router) func() error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	<-router.Running()
	return func() error {
		err := router.Close()
		<-done
		return err
	}
}

// TestFailedBatchIsSentAgainUntilItSucceeds checks that no error and no panic loses a batch, and that a
// streak of failures is logged once.
func TestFailedBatchIsSentAgainUntilItSucceeds(t *testing.T) {
	var out log
	type seen struct {
		d   time.Duration
		err error
	}
	observed := make(chan seen, 100)
	router, err := watermill.NewRouter(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})),
		func(handler string, d time.Duration, err error) {
			if handler != "validator" {
				t.Errorf("observed %q", handler)
			}
			observed <- seen{d, err}
		})
	must.OK(t, err)
	s := &source{batches: [][]events.Record{{record("a"), record("b")}, {record("c")}}}
	tries, finished := 0, make(chan struct{})
	watermill.AddConsumer(router, "validator", "usage.raw", s, func(_ context.Context, records []events.Record) error {
		switch tries++; {
		case len(records) == 1:
			close(finished)
			return nil
		case string(records[0].Value) != "a" || string(records[1].Value) != "b":
			t.Errorf("got %v", records)
			return nil
		case tries == 1:
			return errors.New("database unreachable")
		case tries == 2:
			panic("handler bug")
		}
		return nil
	})
	stop := run(t, router)
	<-finished
	must.OK(t, stop())
	if tries != 4 {
		t.Errorf("two batches, one of which fails twice, were handled %d times, want 4", tries)
	}
	close(observed)
	var errs []string
	for o := range observed {
		if o.err != nil {
			errs = append(errs, strings.SplitN(o.err.Error(), "\n", 2)[0])
		}
	}
	if strings.Join(errs, "; ") != "database unreachable; panic: handler bug" {
		t.Errorf("observed %q", errs)
	}
	// Of the first 30 s, failures are retries of a start.
	if n := strings.Count(out.String(), "level=DEBUG msg=\"handler failed"); n != 2 || strings.Contains(out.String(), "level=ERROR") {
		t.Errorf("%d failures were logged for one streak:\n%s", n, out.String())
	}
	if !strings.Contains(out.String(), "handler works again") {
		t.Error("the end of the streak was not logged")
	}
}

// TestALongOutageLosesNoBatch checks that retries are not limited in number, and that the pause between
// them is bounded.
func TestALongOutageLosesNoBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router, err := watermill.NewRouter(slog.New(slog.DiscardHandler), nil)
		must.OK(t, err)
		const outage = time.Hour
		began, tries, finished := time.Now(), 0, make(chan struct{})
		watermill.AddConsumer(router, "validator", "usage.raw", &source{batches: [][]events.Record{{record("a")}, {record("b")}}},
			func(_ context.Context, records []events.Record) error {
				if string(records[0].Value) == "b" {
					close(finished)
				} else if tries++; time.Since(began) < outage {
					return errors.New("database unreachable")
				}
				return nil
			})
		stop := run(t, router)
		<-finished
		if took := time.Since(began); took < outage || took > outage+10*time.Second {
			t.Errorf("the batch was done with after %s and %d tries", took, tries)
		}
		must.OK(t, stop())
	})
}

// TestCloseLetsTheHandlerFinish checks that an orderly stop does not abort a transaction.
func TestCloseLetsTheHandlerFinish(t *testing.T) {
	router, err := watermill.NewRouter(nil, nil, watermill.CloseTimeout(10*time.Second))
	must.OK(t, err)
	s := &source{batches: [][]events.Record{{record("a")}, {record("b")}}}
	started, release := make(chan struct{}), make(chan struct{})
	handled := 0
	watermill.AddConsumer(router, "h", "t", s, func(ctx context.Context, _ []events.Record) error {
		if handled++; handled == 1 {
			close(started)
			<-release
		}
		return ctx.Err()
	})
	stop := run(t, router)
	<-started
	closed := make(chan error, 1)
	go func() { closed <- stop() }()
	select {
	case <-closed:
		t.Fatal("Close did not wait for the handler")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	must.OK(t, <-closed)
	if handled != 1 {
		t.Errorf("%d batches were handled, intake went on after Close", handled)
	}
}

// TestCloseDoesNotWaitOutAPause checks that a failing handler does not delay a stop.
func TestCloseDoesNotWaitOutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router, err := watermill.NewRouter(slog.New(slog.DiscardHandler), nil)
		must.OK(t, err)
		s := &source{batches: [][]events.Record{{record("a")}}}
		tries := make(chan struct{}, 100)
		watermill.AddConsumer(router, "h", "t", s, func(context.Context, []events.Record) error {
			tries <- struct{}{}
			return errors.New("always")
		})
		stop := run(t, router)
		for range 7 { // the pause has grown to several seconds
			<-tries
		}
		start := time.Now()
		must.OK(t, stop())
		if d := time.Since(start); d > 1200*time.Millisecond {
			t.Errorf("Close took %v", d)
		}
	})
}

func TestCloseGivesUpAfterItsTimeout(t *testing.T) {
	router, err := watermill.NewRouter(slog.New(slog.DiscardHandler), nil, watermill.CloseTimeout(100*time.Millisecond))
	must.OK(t, err)
	s := &source{batches: [][]events.Record{{record("a")}}}
	started, release := make(chan struct{}), make(chan struct{})
	watermill.AddConsumer(router, "h", "t", s, func(context.Context, []events.Record) error {
		close(started)
		<-release
		return nil
	})
	stop := run(t, router)
	<-started
	if err := stop(); err == nil {
		t.Error("Close did not report a hanging handler")
	}
	close(release)
	s.open.Wait()
}
