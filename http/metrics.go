package http

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/commands"
)

// metrics count what was answered. No label names a tenant.
type metrics struct {
	ingested *ingested
	ingest   prometheus.Histogram
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refused  *prometheus.CounterVec
}

// newMetrics registers the metrics, and gauges of what is in work.
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
			Help: "HTTP requests that were told to come again later (429, 503), by what was short."}, []string{"reason"}),
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

// refuse counts a problem that says to come again.
func (m *metrics) refuse(p *Problem) {
	if reason := p.reason(); reason != "" {
		m.refused.WithLabelValues(reason).Inc()
	}
}

// inFlight are gauges of what is in work now.
func (s *service) inFlight() []prometheus.Collector {
	gauge := func(name, help string, labels prometheus.Labels, c *counter) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "meterplex_" + name, Help: help, ConstLabels: labels}, func() float64 { return float64(c.n.Load()) })
	}
	const requests, inWork = "http_requests_in_flight", "HTTP requests in work."
	return []prometheus.Collector{
		gauge(requests, inWork, prometheus.Labels{"kind": "ingest"}, &s.ingests), gauge(requests, inWork, prometheus.Labels{"kind": "other"}, &s.others),
		gauge("http_request_bytes", "What the requests in work are reckoned to take.", nil, &s.memory),
		gauge("http_connections", "Connections that clients hold open.", nil, &s.connections),
	}
}

// answered counts one request. What matched no route is one label, or a scanner
// would make as many as it can think of.
func (m *metrics) answered(route *Route, method string, status int, took time.Duration) {
	if route == nil {
		method = "none"
	}
	m.requests.WithLabelValues(method, routePath(route), strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(method, routePath(route)).Observe(took.Seconds())
}

// ingested counts verdicts, whichever way the events came in.
type ingested struct {
	events    *prometheus.CounterVec
	conflicts prometheus.Counter
}

// newIngested registers the counters, or takes those that are registered already.
func newIngested(registerer prometheus.Registerer) (*ingested, error) {
	c := &ingested{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_events_ingested_total",
			Help: "Usage events answered at ingest, by verdict."}, []string{"verdict"}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{Name: "meterplex_payload_conflicts_total",
			Help: "Events whose eventId was first used with another payload."}),
	}
	var err1, err2 error
	c.events, err1 = registered(registerer, c.events)
	c.conflicts, err2 = registered(registerer, c.conflicts)
	for _, verdict := range []string{commands.StatusAccepted, commands.StatusDuplicate, commands.StatusConflict, commands.StatusRejected} {
		c.events.WithLabelValues(verdict) // a rate needs the zero before the first
	}
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
	i.events.WithLabelValues(commands.StatusAccepted).Add(float64(c.accepted))
	i.events.WithLabelValues(commands.StatusDuplicate).Add(float64(c.duplicates))
	i.events.WithLabelValues(commands.StatusConflict).Add(float64(c.conflicts))
	i.events.WithLabelValues(commands.StatusRejected).Add(float64(c.rejected))
}

// CountVerdicts gives what counts verdicts on usage that did not come by HTTP, in
// the same metrics.
func CountVerdicts(registerer prometheus.Registerer) (func(verdicts []commands.EventVerdict), error) {
	c, err := newIngested(registerer)
	return func(verdicts []commands.EventVerdict) { c.add(countVerdicts(verdicts)) }, err
}
