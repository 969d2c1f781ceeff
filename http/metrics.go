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
	events    *prometheus.CounterVec
	ingest    prometheus.Histogram
	conflicts prometheus.Counter
	requests  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	if registerer == nil {
		registerer = prometheus.NewRegistry()
	}
	buckets := []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .25, .5, 1, 2.5, 10, 30}
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_events_ingested_total",
			Help: "Usage events answered at ingest, by verdict."}, []string{"verdict"}),
		ingest: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "meterplex_ingest_duration_seconds", Buckets: buckets,
			Help: "From the body of an ingest request to its verdicts."}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{Name: "meterplex_payload_conflicts_total",
			Help: "Events whose eventId was first used with another payload."}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_http_requests_total",
			Help: "HTTP requests answered."}, []string{"method", "route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "meterplex_http_request_duration_seconds", Buckets: buckets,
			Help: "From the header of a request to the end of its answer."}, []string{"method", "route"}),
	}
	var faults []error
	for _, c := range []prometheus.Collector{m.events, m.ingest, m.conflicts, m.requests, m.seconds} {
		faults = append(faults, registerer.Register(c))
	}
	for _, verdict := range []string{commands.StatusAccepted, commands.StatusDuplicate, commands.StatusConflict, commands.StatusRejected} {
		m.events.WithLabelValues(verdict) // a rate needs the zero before the first
	}
	return m, errors.Join(faults...)
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

func (m *metrics) ingested(c counts, took time.Duration) {
	m.ingest.Observe(took.Seconds())
	m.conflicts.Add(float64(c.conflicts))
	m.events.WithLabelValues(commands.StatusAccepted).Add(float64(c.accepted))
	m.events.WithLabelValues(commands.StatusDuplicate).Add(float64(c.duplicates))
	m.events.WithLabelValues(commands.StatusConflict).Add(float64(c.conflicts))
	m.events.WithLabelValues(commands.StatusRejected).Add(float64(c.rejected))
}
