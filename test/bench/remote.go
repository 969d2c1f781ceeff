package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/meterplex/meterplex/events"
)

// Remote is a load on a running service.
type Remote struct {
	URL, Key string
	Feature  string        // feature of the usage; with an operator's key it is created
	Rate     float64       // events or checks in a second, open loop; 0: closed loop at the greatest rate
	Clients  int           // connections
	Batch    int           // events or questions in a request
	Duration time.Duration // measured
	WarmUp   time.Duration // before it, at the same rate; not measured
	Tenants  int           // created with an operator's key
	Whale    float64       // percent of the requests that one tenant sends
	Now      func() time.Time
	Log      io.Writer

	quota bool // the operator's feature has a HARD limit
}

// Outcome is the result of a load.
type Outcome struct {
	Loop       string  `json:"loop"` // open: latencies count from when a send was due; closed: from the send
	Offered    float64 `json:"offeredPerSecond,omitempty"`
	Reached    float64 `json:"perSecond"`
	Count      int     `json:"count"` // events or checks answered as expected
	Seconds    float64 `json:"seconds"`
	Refused    int     `json:"refusedRequests"` // answered 429 or 503
	Latency    *Times  `json:"requestMs"`
	Fresh      *Times  `json:"freshMs,omitempty"`
	Sustained  float64 `json:"sustainedPerSecond,omitempty"`
	BehindEnds float64 `json:"readableAfterSeconds,omitempty"`
}

// Times are the latencies of an outcome in milliseconds.
type Times struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
	Of   int64   `json:"of"`
}

func timesOf(h *hdrhistogram.Histogram) *Times {
	l := latencyOf(h)
	return &Times{l.P50, l.P90, l.P99, l.P999, l.Max, l.Count}
}

// RemoteFeature is the feature of an operator's load, which no customer uses.
const RemoteFeature = "meterplex_bench"

// RemoteQuota is the feature of an operator's load of reservations.
const RemoteQuota = "meterplex_bench_quota"

// keyLife is how long the keys of the created tenants outlast the load.
const keyLife = time.Hour

func (m *Remote) target(ctx context.Context) (*target, error) {
	t := &target{urls: []string{m.URL}, feature: m.Feature, whale: m.Whale / 100}
	if !strings.HasPrefix(m.Key, "mp_op_") {
		if m.Tenants > 1 || m.Whale > 0 {
			return nil, errors.New("--tenants and --whale need an operator key with admin: a tenant's key is one tenant")
		}
		if m.Feature == "" {
			return nil, errors.New("set --feature to a feature of the key's tenant, or use an operator key with admin, which creates " +
				"tenants and a feature")
		}
		t.tenants = []tenant{{secret: m.Key}}
		return t, nil
	}
	if m.Feature == "" {
		m.Feature = RemoteFeature
		if m.quota {
			m.Feature = RemoteQuota
		}
	}
	t.operator = m.Key
	fmt.Fprintf(m.Log, "Creating %d tenants named Benchmark …\n", m.Tenants)
	with := tenantSpec{feature: m.Feature, quota: m.quota, tenants: m.Tenants, expires: m.Now().Add(m.WarmUp + m.Duration + keyLife)}
	return t, t.seed(ctx, with)
}

func (m *Remote) ingestLoad(ctx context.Context) (*target, *load, error) {
	t, err := m.target(ctx)
	if err != nil {
		return nil, nil, err
	}
	l, err := t.newIngestLoad(ctx, m.Clients, m.Batch, m.Now())
	return t, l, err
}

// Ingest sends usage.
func (m *Remote) Ingest(ctx context.Context) (*Outcome, error) {
	_, l, err := m.ingestLoad(ctx)
	if err != nil {
		return nil, err
	}
	defer l.close()
	return m.measure(ctx, l, l.send)
}

// Check sends entitlement checks.
func (m *Remote) Check(ctx context.Context) (*Outcome, error) {
	t, err := m.target(ctx)
	if err != nil {
		return nil, err
	}
	l, err := t.newCheckLoad(ctx, m.Clients, m.Batch)
	if err != nil {
		return nil, err
	}
	defer l.close()
	return m.measure(ctx, l, l.send)
}

// measure warms up and measures, both at the configured rate.
func (m *Remote) measure(ctx context.Context, l *load, send func(client int) (int, error)) (*Outcome, error) {
	if _, _, err := m.pace(ctx, l, m.WarmUp, send); err != nil {
		return nil, err
	}
	h, did, err := m.pace(ctx, l, m.Duration, send)
	if err != nil {
		return nil, err
	}
	return m.outcome(l, h, did), nil
}

func (m *Remote) outcome(l *load, h *hdrhistogram.Histogram, did rate) *Outcome {
	o := &Outcome{Loop: "closed", Offered: m.Rate, Count: did.events, Seconds: did.took.Seconds(), Refused: did.refused,
		Latency: timesOf(h)}
	if m.Rate > 0 {
		o.Loop, o.Count = "open", did.events*l.requests[0].size
	}
	o.Reached = round(float64(o.Count)/o.Seconds, 1)
	o.Seconds = round(o.Seconds, 3)
	return o
}

// pace runs an open loop if a rate is set, else a closed one.
func (m *Remote) pace(ctx context.Context, l *load, d time.Duration, send func(client int) (int, error)) (*hdrhistogram.Histogram, rate,
	error) {
	if d <= 0 {
		return newHistogram(), rate{}, nil
	}
	if m.Rate > 0 {
		return openOver(m.Rate/float64(l.requests[0].size), d, m.Clients, func(client, _ int) error {
			_, err := send(client)
			return err
		}).run(ctx)
	}
	hists := make([]*hdrhistogram.Histogram, m.Clients)
	for i := range hists {
		hists[i] = newHistogram()
	}
	did, err := closed(ctx, m.Clients, d, func(client int) (int, error) {
		began := time.Now()
		n, err := send(client)
		if err == nil {
			record(hists[client], time.Since(began))
		}
		return n, err
	})
	total := newHistogram()
	for _, h := range hists {
		total.Merge(h)
	}
	return total, did, err
}

func round(v float64, digits int) float64 {
	by := math.Pow10(digits)
	return math.Round(v*by) / by
}

// ends are the last positions of a load by partition, with their tenants.
type ends struct {
	mu   sync.Mutex
	last map[int16]sampledEvent
}

func (e *ends) note(s sampledEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last[s.position.Partition].position.Number < s.position.Number {
		e.last[s.position.Partition] = s
	}
}

// Flow sends usage and measures until it is readable in the aggregates: freshness, if a rate
// is set, and the rate that the aggregates sustain.
func (m *Remote) Flow(ctx context.Context) (*Outcome, error) {
	t, l, err := m.ingestLoad(ctx)
	if err != nil {
		return nil, err
	}
	defer l.close()
	e := &ends{last: map[int16]sampledEvent{}}
	l.accepted = func(tenant int, p events.Position) { e.note(sampledEvent{tenant: tenant, position: p}) }
	if _, _, err := m.pace(ctx, l, m.WarmUp, l.send); err != nil {
		return nil, err
	}
	if err := t.readAll(ctx, e); err != nil {
		return nil, err
	}
	began := time.Now()
	var o *Outcome
	if m.Rate > 0 {
		w, err := l.withFreshness(ctx, m.Rate/float64(m.Batch), m.Duration)
		if err != nil {
			return nil, err
		}
		o = m.outcome(l, w.ingest, w.did)
		o.Fresh = timesOf(w.fresh)
	} else {
		h, did, err := m.pace(ctx, l, m.Duration, l.send)
		if err != nil {
			return nil, err
		}
		o = m.outcome(l, h, did)
	}
	if err := t.readAll(ctx, e); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	o.Sustained, o.BehindEnds = round(float64(o.Count)/took, 1), round(max(0, took-o.Seconds), 3)
	return o, nil
}

// readAll waits until every accepted event is readable.
func (t *target) readAll(ctx context.Context, e *ends) error {
	for _, s := range e.last {
		a := &api{t.urls[0], t.tenants[s.tenant].secret, http.DefaultClient}
		if err := t.readable(ctx, a, s.position); err != nil {
			return err
		}
	}
	return nil
}
