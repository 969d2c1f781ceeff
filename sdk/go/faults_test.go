package meterplex

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/meterplex/meterplex/sdk/go/internal/queue"
)

// faulty is a queue with faults.
type faulty struct {
	queue.Memory
	append func() error
	read   error
}

func (q *faulty) Append(events [][]byte) (int, error) {
	if q.append != nil {
		if err := q.append(); err != nil {
			return 0, err
		}
	}
	return q.Memory.Append(events)
}

func (q *faulty) Read(most, mostBytes int) ([][]byte, error) {
	if q.read != nil {
		return nil, q.read
	}
	return q.Memory.Read(most, mostBytes)
}

// newFaulty returns a client in memory that writes to a queue with faults.
func newFaulty(t *testing.T, s *service, q *faulty) (*Client, *collected) {
	c, got := newClient(t, s, "", func(o *Options) { o.Memory = true })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = q
	return c, got
}

// A disk that is found full after the caller's deadline does not hold the caller.
func TestAFullDiskKeepsTheDeadline(t *testing.T) {
	full, begun := make(chan error), make(chan bool, 10)
	c, _ := newFaulty(t, newService(t), &faulty{append: func() error { begun <- true; return <-full }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := c.Record(ctx, Event{Feature: "f", Amount: 1})
		done <- err
	}()
	<-begun
	cancel()
	eventually(t, "the end of the context is seen", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.pending) == 1 && c.pending[0].late
	})
	full <- queue.ErrFull
	if err := <-done; code(err) != "queue_full" {
		t.Error(err)
	}
	close(full)
	record(t, c, "a") // there is space again
}

// A queue that cannot be read does not stop the others, and is reported once in a while.
func TestAnUnreadableQueue(t *testing.T) {
	s := newService(t)
	c, got := newFaulty(t, s, &faulty{})
	c.mu.Lock()
	c.taken = append(c.taken, &faulty{read: errors.New("EIO")})
	c.mu.Unlock()
	for _, id := range []string{"a", "b", "c"} {
		record(t, c, id)
		flush(t, c)
	}
	if len(s.order) != 3 || len(got.codes()) != 1 || got.codes()[0] != "queue_failed" {
		t.Errorf("%v %v", s.order, got.codes())
	}
}

// An application may have wrapped the default transport.
func TestTheDefaultTransportIsNotUsed(t *testing.T) {
	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	http.DefaultTransport = http.NewFileTransport(http.Dir("."))
	s := newService(t)
	c, _ := newClient(t, s, t.TempDir(), nil)
	record(t, c, "a")
	flush(t, c)
}

// A hold of unknown outcome is released; work that reports nonsense commits nothing.
func TestAReservationThatFails(t *testing.T) {
	c, calls := scripted(t, func(_ int, c call) (int, string) {
		if c.method == "POST" {
			return 0, ""
		}
		return 200, `{"reservationId":"job","state":"RELEASED","amount":"10"}`
	})
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.WithReservation(short, ReserveRequest{Feature: "tokens", Amount: 10, ReservationID: "job"}, nil)
	if last := (*calls)[len(*calls)-1]; code(err) != "unknown_outcome" || last.method != "DELETE" {
		t.Errorf("%v %+v", err, last)
	}
	c, calls = scripted(t, func(int, call) (int, string) { return 200, `{"reservationId":"job","state":"HELD","amount":"10"}` })
	_, err = c.WithReservation(t.Context(), ReserveRequest{Feature: "tokens", Amount: 10, ReservationID: "job"},
		func(context.Context) (int64, error) { return -1, nil })
	if last := (*calls)[len(*calls)-1]; code(err) != "amount_invalid" || last.method != "DELETE" {
		t.Errorf("%v %+v", err, last)
	}
}

// Rejected events in memory count for the size of the queue.
func TestRejectedEventsInMemoryAreBounded(t *testing.T) {
	s := newService(t)
	c, _ := newClient(t, s, "", func(o *Options) { o.Memory, o.QueueBytes = true, 150 })
	_, err := c.Record(t.Context(), Event{EventID: "r", Feature: "unknown", Amount: 1})
	ok(t, err)
	flush(t, c)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Record(short, Event{EventID: "b", Feature: "api_calls", Amount: 1}); code(err) != "queue_full" {
		t.Error(err)
	}
	ok(t, c.Acknowledge("r"))
	record(t, c, "b")
}
