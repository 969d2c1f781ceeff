package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/meterplex/meterplex/events"
)

const (
	freshRate = 1000
	// samples is the number of sampled requests in a second: reading the aggregates must
	// not become the load.
	samples = 20
)

// sampledEvent is an accepted event whose aggregate is read.
type sampledEvent struct {
	tenant   int
	position events.Position
	accepted time.Time
}

// freshness is B5: from the 202 until a client can read the aggregate with the event.
func (r *run) freshness(ctx context.Context, s *subject) error {
	l, err := r.warmLoad(ctx, s, steadyClients, 1)
	if err != nil {
		return err
	}
	defer l.close()
	if err := s.settled(ctx); err != nil {
		return err
	}
	hops, err := r.kafkaHops(ctx)
	if err != nil {
		return err
	}
	f := figureB5()
	if err := r.fresh(ctx, s, &f); err != nil {
		return err
	}
	f.LimitLatency = latencyOf(hops)
	f.Limit = f.LimitLatency.P50
	r.addFigure(f)
	return nil
}

// fresh measures freshness at a steady rate.
func (r *run) fresh(ctx context.Context, s *subject, f *Figure) error {
	l, err := s.newIngestLoad(ctx, steadyClients, 1, r.cfg.Now())
	if err != nil {
		return err
	}
	defer l.close()
	end, err := r.servers.measure(ctx)
	if err != nil {
		return err
	}
	seen, err := l.withFreshness(ctx, freshRate, r.times.fresh)
	if err != nil {
		return err
	}
	took, err := end(seen.did)
	if err != nil {
		return err
	}
	f.cost(took, r.servers.meter.memory())
	f.Latency, f.LatencyAt = latencyOf(seen.fresh), fmt.Sprintf("from the 202, at %d events/s", freshRate)
	f.Value = f.Latency.P50
	f.note("ingest meanwhile", latencyOf(seen.ingest).String())
	f.refused(seen.did)
	return nil
}

// freshnessResult is the result of an open load with measured freshness.
type freshnessResult struct {
	fresh  *hdrhistogram.Histogram // from the 202 until the event is readable
	ingest *hdrhistogram.Histogram // from when a request was due until the 202
	did    rate                    // requests
}

// withFreshness sends at a rate, and measures the freshness of a sample.
func (l *load) withFreshness(ctx context.Context, perSecond float64, d time.Duration) (w freshnessResult, err error) {
	every := max(1, int(perSecond/samples))
	pace := openOver(perSecond, d, len(l.wires), nil)
	samples := make(chan sampledEvent, pace.sends/every+1) // the load never waits for a reader
	pace.send = func(client, n int) error {
		if _, err := l.send(client); err != nil || n%every != 0 {
			return err
		}
		at := time.Now()
		p, err := l.wires[client].lastPosition()
		samples <- sampledEvent{l.last[client], p, at}
		return err
	}
	looked := make(chan error, 1)
	w.fresh = newHistogram()
	go func() { looked <- l.target.sampleFreshness(ctx, samples, w.fresh) }()
	w.ingest, w.did, err = pace.run(ctx)
	close(samples)
	if lerr := <-looked; err == nil {
		err = lerr
	}
	return w, err
}

// sampleFreshness reads the aggregates until they include the sampled events, several samples at a time.
func (t *target) sampleFreshness(ctx context.Context, samples <-chan sampledEvent, seen *hdrhistogram.Histogram) error {
	const watchers = 16
	hists := make([]*hdrhistogram.Histogram, watchers)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: watchers}}
	defer client.CloseIdleConnections()
	err := all(watchers, func(i int) error {
		hists[i] = newHistogram()
		for look := range samples {
			a := &api{t.urls[i%len(t.urls)], t.tenants[look.tenant].secret, client}
			if err := t.readable(ctx, a, look.position); err != nil {
				for range samples { // otherwise the load would wait forever
				}
				return err
			}
			record(hists[i], time.Since(look.accepted))
		}
		return nil
	})
	for _, h := range hists {
		seen.Merge(h)
	}
	return err
}

// readable waits until the aggregates include every event up to a position.
func (t *target) readable(ctx context.Context, a *api, p events.Position) error {
	query := url.Values{"feature": {t.feature}, "minPosition": {p.String()}}
	for began := time.Now(); ; {
		err := a.call(ctx, "GET", "/usage/aggregates?"+query.Encode(), nil, nil, "Prefer", "wait=30")
		r, behind := isRefusal(err)
		if !behind {
			return err
		}
		if time.Since(began) > catchUpTime {
			return fmt.Errorf("usage is not in the aggregates %s after it was accepted: %w", catchUpTime, err)
		}
		pause(ctx, r.after)
	}
}
