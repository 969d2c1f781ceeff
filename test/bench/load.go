package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// closed keeps a number of clients busy for a duration: each sends again as soon as it has an
// answer. It returns the number of answered events and the time. It finds the greatest rate; it
// does not measure latency.
func closed(ctx context.Context, clients int, d time.Duration, send func(client int) (int, error)) (rate, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d, errTimeIsUp)
	defer cancel()
	var done, refused atomic.Int64
	began := time.Now()
	err := all(clients, func(client int) error {
		for ctx.Err() == nil {
			n, err := send(client)
			if r, ok := isRefusal(err); ok {
				refused.Add(1)
				pause(ctx, max(r.after, refusedPause))
				continue
			}
			if err != nil {
				return err
			}
			done.Add(int64(n))
		}
		if err := context.Cause(ctx); !errors.Is(err, errTimeIsUp) {
			return err
		}
		return nil
	})
	return rate{int(done.Load()), time.Since(began), int(refused.Load())}, err
}

// refusedPause is the least time that a client waits after a refusal.
const refusedPause = 10 * time.Millisecond

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

var errTimeIsUp = errors.New("the time is up")

// all runs f n times at once and returns one of the errors: an error that ends one client
// mostly ends them all.
func all(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() { errs[i] = f(i) })
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// rate is a number of events in a time, and the number of refused requests.
type rate struct {
	events  int
	took    time.Duration
	refused int
}

func (r rate) plus(o rate) rate {
	return rate{r.events + o.events, r.took + o.took, r.refused + o.refused}
}

func (r rate) perSecond() float64 { return float64(r.events) / r.took.Seconds() }

// open is an open-loop load: the times of all sends are fixed before the first, whatever the
// answers are. A latency counts from the fixed time, so it includes the wait for a free
// client (no coordinated omission).
type open struct {
	perSecond float64
	sends     int
	clients   int // the most requests under way; further requests wait, and the wait counts
	send      func(client, n int) error
	// seen, if set, receives each latency with the time when its send was due. All clients
	// call it at once.
	seen func(due time.Time, took time.Duration)
}

// due is the time of the n-th send.
func (l *open) due(start time.Time, n int) time.Time {
	return start.Add(time.Duration(float64(n) / l.perSecond * float64(time.Second)))
}

// openOver returns an open-loop load of a duration.
func openOver(perSecond float64, d time.Duration, clients int, send func(client, n int) error) *open {
	return &open{perSecond: perSecond, sends: int(perSecond * d.Seconds()), clients: clients, send: send}
}

// run makes all the sends. The first error ends it. A refusal does not: it is counted, and
// its latency is not recorded.
func (l *open) run(ctx context.Context) (*hdrhistogram.Histogram, rate, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := time.Now().Add(10 * time.Millisecond)
	ready := make(chan int, l.sends) // the clock never waits for a client
	go l.clock(ctx, start, ready)
	var refused atomic.Int64
	hists := make([]*hdrhistogram.Histogram, l.clients)
	err := all(l.clients, func(client int) error {
		hists[client] = newHistogram()
		for n := range ready {
			if ctx.Err() != nil { // sends that are already due are dropped
				return nil
			}
			err := l.send(client, n)
			if _, ok := isRefusal(err); ok {
				refused.Add(1)
				continue
			}
			if err != nil {
				cancel()
				return err
			}
			due := l.due(start, n)
			took := time.Since(due)
			record(hists[client], took)
			if l.seen != nil {
				l.seen(due, took)
			}
		}
		return nil
	})
	total := newHistogram()
	for _, h := range hists {
		total.Merge(h)
	}
	return total, rate{int(total.TotalCount()), time.Since(start), int(refused.Load())}, errors.Join(err, ctx.Err())
}

// clock passes on each send when it is due, until ctx ends.
func (l *open) clock(ctx context.Context, start time.Time, ready chan<- int) {
	defer close(ready)
	for n := range l.sends {
		sleepUntil(l.due(start, n))
		if ctx.Err() != nil {
			return
		}
		ready <- n
	}
}

// newHistogram records latencies in microseconds, with three digits, up to two minutes.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (2 * time.Minute).Microseconds(), 3)
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d.Microseconds(), 1), h.HighestTrackableValue()))
}
