package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// load is a group of clients that send until they are stopped.
type load struct {
	w       *deployment
	clients []*client
	cancel  context.CancelFunc
	wait    sync.WaitGroup
}

// mix is a client's kind of traffic; the shares are percentages.
type mix struct {
	duplicates, conflicts, rejections int
	batch                             int           // greatest size
	pause                             time.Duration // between batches
}

// busyTraffic is the traffic of a busy producer with bugs. Its pauses leave processor time to the tests
// that run in parallel.
func busyTraffic() mix {
	return mix{duplicates: 20, conflicts: 3, rejections: 3, batch: 60, pause: 50 * time.Millisecond}
}

// lightTraffic is for long faults: few enough requests to leave processor time to the restarts, and few
// enough events for a fast check afterwards.
func lightTraffic() mix {
	return mix{duplicates: 20, conflicts: 3, rejections: 3, batch: 24, pause: 400 * time.Millisecond}
}

// underLoad lets clients of two tenants send to an instance while a fault is applied, and checks that nothing is lost, counted twice or
// withheld.
func (w *deployment) underLoad(each int, m mix, fault func(i *instance, l *load)) {
	w.t.Helper()
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	l := w.startLoad(tenants, each, m, func(int) string { return i.url() })
	fault(i, l)
	l.stop()
	w.settle(i, tenants...)
	w.finish()
}

// startLoad starts n clients for each tenant; to returns the URL for each client.
func (w *deployment) startLoad(tenants []*tenant, n int, m mix, to func(client int) string) *load {
	ctx, cancel := context.WithCancel(w.t.Context())
	l := &load{w: w, cancel: cancel}
	w.loads++
	for _, x := range tenants {
		for range n {
			number := len(l.clients)
			c := &client{w: w, tenant: x, to: func() string { return to(number) }}
			l.clients = append(l.clients, c)
			source := &source{rng: rand.New(rand.NewPCG(w.seed, uint64(w.loads<<16+number))), mix: m,
				name: fmt.Sprintf("load%d-c%d", w.loads, number)}
			l.wait.Go(func() {
				for ctx.Err() == nil {
					// A batch under way when the load stops still gets its answer.
					c.send(w.t.Context(), source.batch())
					select {
					case <-ctx.Done():
					case <-time.After(source.pause):
					}
				}
			})
		}
	}
	w.t.Cleanup(l.stop)
	return l
}

// stop ends the load when every batch under way has its verdicts.
func (l *load) stop() {
	l.cancel()
	l.wait.Wait()
}

// acked counts the events acknowledged so far.
func (l *load) acked() (n int) {
	var seen []*tenant
	for _, c := range l.clients {
		if !slices.Contains(seen, c.tenant) {
			seen = append(seen, c.tenant)
			n += c.tenant.ledger.acked()
		}
	}
	return n
}

// lost counts the requests without an answer so far.
func (l *load) lost() (n int) {
	for _, c := range l.clients {
		c.note(func() { n += c.lost })
	}
	return n
}

// refused counts the requests so far that the service did not begin.
func (l *load) refused() (n int) {
	for _, c := range l.clients {
		c.note(func() { n += c.refused })
	}
	return n
}

// latencies returns the times of the requests answered in a range of time, in order.
func (l *load) latencies(from, to time.Time) (took []time.Duration) {
	for _, c := range l.clients {
		c.note(func() {
			for _, a := range c.answers {
				if a.at.After(from) && a.at.Before(to) {
					took = append(took, a.took)
				}
			}
		})
	}
	slices.Sort(took)
	return took
}

// awaitMore waits until n more events are acknowledged.
func (l *load) awaitMore(n int) {
	l.w.t.Helper()
	from := l.acked()
	within(l.w.t, fmt.Sprintf("%d more events are accepted", n), func(context.Context) (bool, string) {
		now := l.acked()
		return now >= from+n, fmt.Sprintf("%d", now-from)
	})
}

// killDuringRequest kills an instance while a request is under way. It tries up to 20 times, since
// the moment is chance. Its caller starts the instance again.
func (l *load) killDuringRequest(i *instance) {
	l.w.t.Helper()
	for range 20 {
		before := l.lost()
		i.kill()
		if becomesTrue(l.w, time.Second, func(context.Context) bool { return l.lost() > before }) {
			return
		}
		i.start()
		l.awaitMore(1)
	}
	l.w.t.Error("no request was under way at any of twenty kills")
	i.kill()
}

// source makes a client's batches. The same seed makes the same batches, except for the times.
type source struct {
	rng *rand.Rand
	mix
	name string
	made int
	past []event
}

// remembered bounds the events that a source may send again.
const remembered = 2000

func (s *source) batch() []event {
	batch := make([]event, 1+s.rng.IntN(s.mix.batch))
	for i := range batch {
		batch[i] = s.event()
	}
	return batch
}

func (s *source) event() event {
	choice := s.rng.IntN(100)
	if len(s.past) > 0 && choice < s.duplicates+s.conflicts {
		e := s.past[s.rng.IntN(len(s.past))]
		if choice >= s.duplicates {
			e.Amount += 1000
		}
		return e
	}
	s.made++
	names := features()
	e := event{
		EventID: fmt.Sprintf("%s-%d", s.name, s.made), Feature: names[s.rng.IntN(len(names))], Amount: 1 + s.rng.Int64N(500),
		Timestamp: time.Now().UTC().Truncate(time.Microsecond).Add(-time.Duration(s.rng.IntN(3600)) * time.Second),
	}
	if choice >= 100-s.rejections {
		e.Feature = "not.in.the.plan"
		return e
	}
	if len(s.past) < remembered {
		s.past = append(s.past, e)
	} else {
		s.past[s.rng.IntN(remembered)] = e
	}
	return e
}
