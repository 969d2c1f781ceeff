package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	outageRate = 2000 // events/s
	outageSize = 10   // events in a request
	// drainTime bounds the time until the pipeline has caught up.
	drainTime = 3 * time.Minute
)

// phases are the latencies before and during the outage, by when a send was due. The outage may have a first part, until midAt.
type phases struct {
	mu                  sync.Mutex
	downAt, midAt, upAt time.Time
	before, out         *hdrhistogram.Histogram
	first, rest         *hdrhistogram.Histogram // of out
}

func newPhases() *phases {
	return &phases{before: newHistogram(), out: newHistogram(), first: newHistogram(), rest: newHistogram()}
}

func (p *phases) seen(due time.Time, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.downAt.IsZero() || due.Before(p.downAt):
		record(p.before, took)
	case p.upAt.IsZero() || due.Before(p.upAt):
		record(p.out, took)
		if p.midAt.IsZero() || due.Before(p.midAt) {
			record(p.first, took)
		} else {
			record(p.rest, took)
		}
	}
}

func (p *phases) at(t *time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*t = time.Now()
}

// outage is B9: the broker is killed and down for a time under a steady load, which
// continues until the backlog has drained.
func (r *run) outage(ctx context.Context, s *subject) error {
	f := figureB9(r.times.outage)
	sent, err := r.underLoad(ctx, s, r.times.outage, &f, "while the broker was down", r.breakBroker)
	if err != nil {
		return err
	}
	f.refused(sent)
	r.addFigure(f)
	return nil
}

// underLoad runs act under a steady load, for at most atMost and the time to drain. act sets when the phase of the figure begins
// and ends. The latency of the load in it is compared with that before.
func (r *run) underLoad(ctx context.Context, s *subject, atMost time.Duration, f *Figure, during string,
	act func(context.Context, *subject, *phases, *Figure) error) (sent rate, err error) {
	l, err := s.newIngestLoad(ctx, steadyClients, outageSize, r.cfg.Now())
	if err != nil {
		return sent, err
	}
	defer l.close()
	if err := r.ready(ctx, s, l); err != nil {
		return sent, err
	}
	p := newPhases()
	whole := openOver(outageRate/outageSize, r.times.before+atMost+drainTime, steadyClients, l.sendOne)
	whole.seen = p.seen
	loading, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		var err error
		_, sent, err = whole.run(loading)
		done <- err
	}()
	err = act(ctx, s, p, f)
	stop()
	if lerr := <-done; !errors.Is(lerr, context.Canceled) || ctx.Err() != nil {
		err = errors.Join(err, lerr)
	}
	if err != nil {
		return sent, err
	}
	f.Latency, f.LimitLatency = latencyOf(p.out), latencyOf(p.before)
	if !p.midAt.IsZero() {
		f.note("latency until all were requested", latencyOf(p.first).String())
		f.note("latency thereafter", latencyOf(p.rest).String())
	}
	f.LatencyAt = fmt.Sprintf("of a request of %d events at %d events/s %s; the limit is the same load before", outageSize, outageRate,
		during)
	return sent, nil
}

// breakBroker kills the broker, restarts it and waits until only the load's newest events are left.
func (r *run) breakBroker(ctx context.Context, s *subject, p *phases, f *Figure) error {
	pause(ctx, r.times.before)
	p.at(&p.downAt)
	if err := r.servers.broker.Kill(); err != nil {
		return fmt.Errorf("kill the broker: %w", err)
	}
	pause(ctx, r.times.outage)
	restarted := time.Now()
	if err := r.servers.broker.Restart(ctx); err != nil {
		return fmt.Errorf("restart the broker: %w", err)
	}
	p.at(&p.upAt)
	r.servers.meter.kafka = r.servers.broker.PID()
	end, err := r.servers.measure(ctx)
	if err != nil {
		return err
	}
	var first, last progress
	err = s.pollProgress(ctx, 100*time.Millisecond, func(at progress) bool {
		if first.at.IsZero() {
			first = at
		}
		last = at
		return at.behind() <= outageRate/4
	})
	if err != nil {
		return err
	}
	did := rate{events: int(last.applied - first.applied), took: last.at.Sub(p.upAt)}
	took, err := end(did)
	if err != nil {
		return err
	}
	f.Value = did.took.Seconds()
	f.cost(took, r.servers.meter.memory())
	f.note("worked off", fmt.Sprintf("%d events were queued when the broker answered; %d were applied until at most the events of a "+
		"quarter of a second were left, %.0f/s", first.behind(), did.events, did.perSecond()))
	f.note("the broker's own start", fmt.Sprintf("%.1f s more of outage, not in the figure", p.upAt.Sub(restarted).Seconds()))
	return nil
}
