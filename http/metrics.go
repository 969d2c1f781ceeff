package http

import (
	"errors"
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/commands"
)

// metrics counts answers. No label names a tenant.
type metrics struct {
	ingested *ingested
	ingest   prometheus.Histogram
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	kinds    atomic.Pointer[map[answerKind]answerMeters] // replaced if a new kind is added
}

// answerKind is the label set of an answer. There are few.
type answerKind struct {
	route  *Route
	method string
	status int
}

type answerMeters struct {
	requests prometheus.Counter
	seconds  prometheus.Observer
}

// newMetrics registers the metrics and the gauges of requests in flight.
func newMetrics(registerer prometheus.Registerer, gauges ...prometheus.Collector) (*metrics, error) {
	if registerer == nil {
		registerer = prometheus.NewRegistry()
	}
	buckets := []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .25, .5, 1, 2.5, 10, 30}
	verdicts, err := newIngested(registerer)
	if err != nil {
		return nil, err
	}
	m := &metrics{
		ingested: verdicts,
		ingest: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "meterplex_ingest_duration_seconds", Buckets: buckets,
			Help: "From the body of an ingest request to its verdicts."}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_http_requests_total",
			Help: "HTTP requests answered."}, []string{"method", "route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "meterplex_http_request_duration_seconds", Buckets: buckets,
			Help: "From the header of a request to the end of its answer."}, []string{"method", "route"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_http_refused_total",
			Help: "HTTP requests that were refused for now (429, 503), by the exhausted resource."}, []string{"reason"}),
	}
	for _, reason := range reasons() {
		m.refused.WithLabelValues(reason)
	}
	var faults []error
	for _, c := range append(gauges, m.ingest, m.requests, m.seconds, m.refused) {
		faults = append(faults, registerer.Register(c))
	}
	return m, errors.Join(faults...)
}

// refuse counts a problem if it has a reason label.
func (m *metrics) refuse(p *Problem) {
	if reason := p.reason(); reason != "" {
		m.refused.WithLabelValues(reason).Inc()
	}
}

// inFlight returns the gauges of current requests and memory.
func (s *service) inFlight() []prometheus.Collector {
	gauge := func(name, help string, labels prometheus.Labels, c *counter) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "meterplex_" + name, Help: help, ConstLabels: labels}, func() float64 { return float64(c.n.Load()) })
	}
	const requests, inWork = "http_requests_in_flight", "HTTP requests in work."
	return []prometheus.Collector{
		gauge(requests, inWork, prometheus.Labels{"kind": "ingest"}, &s.ingests), gauge(requests, inWork, prometheus.Labels{"kind": "other"}, &s.others),
		gauge("http_request_bytes", "Estimated memory of the requests in work.", nil, &s.memory),
		gauge("http_connections", "Connections that clients hold open.", nil, &s.connections),
	}
}

// answered counts one request. All requests without a route share one label, otherwise a
// scanner could create any number of label values.
func (m *metrics) answered(route *Route, method string, status int, took time.Duration) {
	if route == nil {
		method = "none"
	}
	meters := m.metersOf(answerKind{route, method, status})
	meters.requests.Inc()
	meters.seconds.Observe(took.Seconds())
}

// metersOf caches the meters of each kind, which saves label lookups on each request.
func (m *metrics) metersOf(kind answerKind) answerMeters {
	known := m.kinds.Load()
	if known != nil {
		if meters, ok := (*known)[kind]; ok {
			return meters
		}
	}
	path := routePath(kind.route)
	meters := answerMeters{m.requests.WithLabelValues(kind.method, path, strconv.Itoa(kind.status)), m.seconds.WithLabelValues(kind.method, path)}
	more := map[answerKind]answerMeters{kind: meters}
	if known != nil {
		maps.Copy(more, *known)
	}
	m.kinds.CompareAndSwap(known, &more) // if another goroutine was first, the next answer tries again
	return meters
}

// ingested counts verdicts of all ingest transports.
type ingested struct {
	accepted, duplicate, conflict, rejected prometheus.Counter // by verdict

	conflicts prometheus.Counter
}

// newIngested registers the counters, or reuses registered ones.
func newIngested(registerer prometheus.Registerer) (*ingested, error) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_events_ingested_total",
		Help: "Usage events answered at ingest, by verdict."}, []string{"verdict"})
	c := &ingested{
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{Name: "meterplex_payload_conflicts_total",
			Help: "Events whose eventId was first used with another payload."}),
	}
	var err1, err2 error
	events, err1 = registered(registerer, events)
	c.conflicts, err2 = registered(registerer, c.conflicts)
	// Create all series at the start: a rate needs the zero before the first increment.
	c.accepted, c.duplicate = events.WithLabelValues(commands.StatusAccepted), events.WithLabelValues(commands.StatusDuplicate)
	c.conflict, c.rejected = events.WithLabelValues(commands.StatusConflict), events.WithLabelValues(commands.StatusRejected)
	return c, errors.Join(err1, err2)
}

func registered[C prometheus.Collector](registerer prometheus.Registerer, c C) (C, error) {
	err := registerer.Register(c)
	if there := (prometheus.AlreadyRegisteredError{}); errors.As(err, &there) {
		if known, ok := there.ExistingCollector.(C); ok {
			return known, nil
		}
	}
	return c, err
}

func (i *ingested) add(c counts) {
	i.conflicts.Add(float64(c.conflicts))
	i.accepted.Add(float64(c.accepted))
	i.duplicate.Add(float64(c.duplicates))
	i.conflict.Add(float64(c.conflicts))
	i.rejected.Add(float64(c.rejected))
}

// CountVerdicts returns a function that counts verdicts of other transports than HTTP in
// the same metrics.
func CountVerdicts(registerer prometheus.Registerer) (func(verdicts []commands.EventVerdict), error) {
	c, err := newIngested(registerer)
	return func(verdicts []commands.EventVerdict) { c.add(countVerdicts(verdicts)) }, err
}
