package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// overloadRate is several times the pipeline's rate on two cores.
	overloadRate    = 60_000
	overloadClients = 64
)

// overload offers more than the pipeline can process: accepted requests should be answered as usual, the
// rest refused early, memory should not grow, and the service should recover soon.
func (r *run) overload(ctx context.Context, s *subject) error {
	l, err := s.newIngestLoad(ctx, overloadClients, streamSize, r.cfg.Now())
	if err != nil {
		return err
	}
	defer l.close()
	if err := r.ready(ctx, s, l); err != nil {
		return err
	}
	d := r.times.overload
	if r.cfg.Overload > 0 {
		d = r.cfg.Overload
	}
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	sampled := make(chan []float64, 1)
	go func() { sampled <- r.servers.meter.serviceMemory(sampling) }()
	end, err := r.servers.measure(ctx)
	if err != nil {
		return err
	}
	// Requests without a free connection at the end are not sent.
	loading, enough := context.WithTimeout(ctx, d)
	defer enough()
	offered := openOver(overloadRate/streamSize, d, overloadClients, l.sendOne)
	h, did, err := offered.run(loading)
	if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	ended := time.Now()
	stop()
	memory := <-sampled
	did.events *= streamSize
	took, err := end(did)
	if err != nil {
		return err
	}
	if err := s.settled(ctx); err != nil {
		return err
	}
	f := figureOverload(d)
	f.Value = did.perSecond()
	f.cost(took, r.servers.meter.memory())
	f.Latency, f.LatencyAt = latencyOf(h), fmt.Sprintf("of an accepted request of %d events, at %d events/s offered", streamSize,
		overloadRate)
	f.note("refused", fmt.Sprintf("%d of %d requests, by 429 or 503; %d were accepted, and the rest never sent: every connection waited "+
		"for an answer",
		did.refused, offered.sends, h.TotalCount()))
	f.note("all readable", fmt.Sprintf("%.1f s after the load", time.Since(ended).Seconds()))
	f.note("memory of the service after a quarter, half, three quarters and all of it", quarters(memory))
	r.addFigure(f)
	return nil
}

// quarters lists the samples at each quarter of their time, in MiB.
func quarters(samples []float64) (text string) {
	for q := 1; q <= 4 && len(samples) > 0; q++ {
		if q > 1 {
			text += ", "
		}
		text += fmt.Sprintf("%.0f", samples[max(0, len(samples)*q/4-1)])
	}
	return text + " MiB"
}

// serviceMemory reads the service's memory each second until ctx ends.
func (m *meter) serviceMemory(ctx context.Context) (samples []float64) {
	for ctx.Err() == nil {
		sum := 0.0
		for _, pid := range m.instances() {
			sum += status(pid, "VmRSS")
		}
		samples = append(samples, sum)
		pause(ctx, time.Second)
	}
	return samples
}

// idle measures the cost of a service without requests.
func (r *run) idle(ctx context.Context, s *subject) error {
	if err := s.settled(ctx); err != nil {
		return err
	}
	pause(ctx, 2*time.Second) // for the consequences of the last events
	end, err := r.servers.measure(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	pause(ctx, r.times.idle)
	took, err := end(rate{events: int(r.times.idle.Seconds()), took: time.Since(began)})
	if err != nil {
		return err
	}
	f := figureIdle()
	f.Value = 100 * took.cpu.Service / took.did.took.Seconds()
	f.cost(took, r.servers.meter.memory())
	r.addFigure(f)
	return nil
}
