package bench

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
	// sampleEvery is one in how many events is waited for: the asking itself
	// must not be the load.
	sampleEvery = 50
)

// sighting asks for an event that was just accepted.
type sighting struct {
	tenant   int
	position events.Position
	accepted time.Time
}

// freshness is B5: from the 202 until the aggregate that holds the event can be
// read, as a client would find out.
func (r *run) freshness(ctx context.Context, s *subject) error {
	l, err := s.newIngestLoad(ctx, steadyClients, 1, r.cfg.Now())
	if err != nil {
		return err
	}
	defer l.close()
	if err := r.warm(ctx, l); err != nil {
		return err
	}
	if err := s.settled(ctx); err != nil {
		return err
	}
	hops, err := r.kafkaHops(ctx)
	if err != nil {
		return err
	}
	end, err := r.stand.spend(ctx)
	if err != nil {
		return err
	}
	seen, ingest, did, err := r.watchFresh(ctx, s, l)
	if err != nil {
		return err
	}
	took, err := end(did)
	if err != nil {
		return err
	}
	f := figureB5()
	f.cost(took, r.stand.meter.memory())
	f.Latency, f.LimitLatency = latencyOf(seen), latencyOf(hops)
	f.LatencyAt = fmt.Sprintf("from the 202, at %d events/s", freshRate)
	f.Value, f.Limit = f.Latency.P50, f.LimitLatency.P50
	f.note("ingest meanwhile", latencyOf(ingest).String())
	r.add(f)
	return nil
}

// watchFresh sends, and asks for some of what it sent.
func (r *run) watchFresh(ctx context.Context, s *subject, l *ingestLoad) (seen, ingest *hdrhistogram.Histogram, did rate, err error) {
	asked := make(chan sighting, freshRate) // more than can be waiting
	load := openOver(freshRate, r.times.fresh, steadyClients, func(client, n int) error {
		turn := l.turns[client]
		if _, err := l.send(client); err != nil || n%sampleEvery != 0 {
			return err
		}
		at := time.Now()
		p, err := l.wires[client].lastPosition()
		// Each client's list of tenants begins at another one.
		asked <- sighting{(turn + client) % len(s.tenants), p, at}
		return err
	})
	watched := make(chan error, 1)
	seen = newHistogram()
	go func() { watched <- s.watch(ctx, asked, seen) }()
	ingest, did, err = load.run(ctx)
	close(asked)
	if werr := <-watched; err == nil {
		err = werr
	}
	return seen, ingest, did, err
}

// watch reads the aggregates until they hold what is asked for. What is waiting
// waits beside the rest.
func (s *subject) watch(ctx context.Context, asked <-chan sighting, seen *hdrhistogram.Histogram) error {
	const watchers = 16
	hists := make([]*hdrhistogram.Histogram, watchers)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: watchers}}
	defer client.CloseIdleConnections()
	err := all(watchers, func(i int) error {
		hists[i] = newHistogram()
		for look := range asked {
			a := &api{s.url, s.tenants[look.tenant].secret, client}
			query := url.Values{"feature": {feature}, "minPosition": {look.position.String()}}
			if err := a.call(ctx, "GET", "/usage/aggregates?"+query.Encode(), nil, nil, "Prefer", "wait=30"); err != nil {
				for range asked { // or the load would wait for ever
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
