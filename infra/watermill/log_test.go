package watermill_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
)

// heads is a log of one partition, and how far a consumer has read it.
type heads struct {
	mu          sync.Mutex
	head, read  int64
	asked       int
	down, fails int // the next calls of ahead, or reads, that fail
}

func (h *heads) ahead(context.Context) ([]events.Position, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked++; h.down > 0 {
		h.down--
		return nil, errors.New("the database is away")
	}
	if h.read == h.head {
		return nil, nil
	}
	return []events.Position{{Partition: 7, Number: h.head}}, nil
}

func (h *heads) readUpTo(_ context.Context, upTo []events.Position) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fails > 0 {
		h.fails--
		return 0, errors.New("the transaction fails")
	}
	if len(upTo) != 1 || upTo[0].Partition != 7 || upTo[0].Number <= h.read {
		return 0, errors.New("not ahead")
	}
	n := int(upTo[0].Number - h.read)
	h.read = upTo[0].Number
	return n, nil
}

func (h *heads) append(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.head += n
}

func (h *heads) await(t *testing.T, read int64) {
	t.Helper()
	must.Until(t, fmt.Sprint("the log is read up to ", read), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.read == read
	})
}

// follow runs a consumer of the log until the returned function is called.
func follow(t *testing.T, h *heads, every time.Duration, wake <-chan struct{}) (stop func()) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	router, err := watermill.NewRouter(quiet, nil)
	must.OK(t, err)
	sub := &watermill.LogSubscriber{Ahead: h.ahead, Every: every, Wake: wake, Logger: quiet}
	watermill.AddLogConsumer(router, "h", sub, h.readUpTo)
	end := run(t, router)
	return func() {
		t.Helper()
		if err := errors.Join(end(), sub.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestTheLogIsReadAtEachPollAndHint(t *testing.T) {
	h := &heads{head: 3}
	wake := make(chan struct{}, 1)
	stop := follow(t, h, time.Hour, wake)
	h.await(t, 3) // the first poll
	h.append(2)
	wake <- struct{}{}
	h.await(t, 5)
	stop()
	h.append(1)
	stop = follow(t, h, time.Millisecond, nil)
	h.await(t, 6)
	h.append(1)
	h.await(t, 7)
	stop()
}

// After a failure the positions are looked up again, and no event is passed over.
func TestP11_AnOutageOfTheDatabaseLosesNoPosition(t *testing.T) {
	h := &heads{head: 3, down: 2, fails: 2}
	stop := follow(t, h, time.Millisecond, nil)
	h.await(t, 3)
	stop()
	if h.asked < 5 { // two that fail, two whose reads fail, one that succeeds
		t.Errorf("asked %d times", h.asked)
	}
}

// looks runs a reader of an empty log for some time, which a test may pass with hints, and returns when it looked.
func looks(t *testing.T, sub *watermill.LogSubscriber, during func()) (at []time.Time) {
	t.Helper()
	sub.Logger = slog.New(slog.DiscardHandler)
	sub.Ahead = func(context.Context) ([]events.Position, error) {
		at = append(at, time.Now())
		return nil, nil
	}
	if _, err := sub.Subscribe(t.Context(), "h"); err != nil {
		t.Fatal(err)
	}
	during()
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	return at
}

// A look without an answer, of a server that has vanished, ends, and the next one may meet the server in its place.
func TestP11_ALookWithoutAnAnswerIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		sub := &watermill.LogSubscriber{
			Every:  50 * time.Millisecond,
			Logger: slog.New(slog.DiscardHandler),
			Ahead: func(ctx context.Context) ([]events.Position, error) {
				if asked++; asked == 1 {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return []events.Position{{Partition: 1, Number: 7}}, nil
			},
		}
		began := time.Now()
		messages, err := sub.Subscribe(t.Context(), "h")
		must.OK(t, err)
		(<-messages).Ack()
		if waited := time.Since(began); waited > 6*time.Second {
			t.Errorf("waited %v for an answer", waited)
		}
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAStreamOfHintsIsNoStreamOfLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const apart = 25 * time.Millisecond
		wake := make(chan struct{}, 1)
		at := looks(t, &watermill.LogSubscriber{Every: time.Hour, Wake: wake}, func() {
			for range 1000 {
				time.Sleep(time.Millisecond)
				select {
				case wake <- struct{}{}:
				default:
				}
			}
			time.Sleep(time.Second)
			wake <- struct{}{}
			time.Sleep(time.Millisecond)
		})
		for i, now := range at[1:] {
			if now.Sub(at[i]) < apart {
				t.Errorf("a look follows %s after the one before", now.Sub(at[i]))
			}
		}
		if n := len(at); n < 40 || n > 43 {
			t.Errorf("%d looks in a second of hints, and at one more", n)
		}
		if late := time.Since(at[len(at)-1]); late != time.Millisecond {
			t.Errorf("the last look was %s ago; a single hint does not wait", late)
		}
	})
}

func TestPositionsOfAMessageThatIsNotOurs(t *testing.T) {
	msg := watermill.Batch([]events.Record{record("a")})
	if got, err := watermill.Positions(msg); err == nil {
		t.Errorf("read %v from a batch of records", got)
	}
	msg.Payload = []byte("3-5 31-9")
	if got, err := watermill.Positions(msg); err != nil ||
		!slices.Equal(got, []events.Position{{Partition: 3, Number: 5}, {Partition: 31, Number: 9}}) {
		t.Errorf("read %v, %v", got, err)
	}
}
