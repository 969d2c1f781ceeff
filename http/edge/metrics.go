package edge

import (
	"errors"
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
)

// requestMetrics counts answers. No label names a tenant.
type requestMetrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	kinds    atomic.Pointer[map[answerKind]answerMeters] // replaced if a new kind is added
}

// answerKind is the label set of an answer. There are few.
type answerKind struct {
	route  *auth.Route
	method string
	status int
}

type answerMeters struct {
	requests prometheus.Counter
	seconds  prometheus.Observer
}

// LatencyBuckets are the buckets of all durations of HTTP.
func LatencyBuckets() []float64 {
	return []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .25, .5, 1, 2.5, 10, 30}
}

// newRequestMetrics registers the metrics and the gauges of requests in flight.
func newRequestMetrics(registerer prometheus.Registerer, gauges ...prometheus.Collector) (*requestMetrics, error) {
	if registerer == nil {
		registerer = prometheus.NewRegistry()
	}
	m := &requestMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_http_requests_total",
			Help: "HTTP requests answered."}, []string{"method", "route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "meterplex_http_request_duration_seconds", Buckets: LatencyBuckets(),
			Help: "From the header of a request to the end of its answer."}, []string{"method", "route"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_http_refused_total",
			Help: "HTTP requests that were refused for now (429, 503), by the exhausted resource."}, []string{"reason"}),
	}
	for _, reason := range problem.Reasons() {
		m.refused.WithLabelValues(reason)
	}
	var faults []error
	for _, c := range append(gauges, m.requests, m.seconds, m.refused) {
		faults = append(faults, registerer.Register(c))
	}
	return m, errors.Join(faults...)
}

// refuse counts a problem if it has a reason label.
func (m *requestMetrics) refuse(p *problem.Problem) {
	if reason := p.Reason(); reason != "" {
		m.refused.WithLabelValues(reason).Inc()
	}
}

// inFlight returns the gauges of current requests and memory.
func (e *Edge) inFlight() []prometheus.Collector {
	gauge := func(name, help string, labels prometheus.Labels, c *admission.Counter) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "meterplex_" + name, Help: help, ConstLabels: labels}, func() float64 { return float64(c.Load()) })
	}
	const requests, inWork = "http_requests_in_flight", "HTTP requests in work."
	return []prometheus.Collector{
		gauge(requests, inWork, prometheus.Labels{"kind": "ingest"}, &e.ingests), gauge(requests, inWork, prometheus.Labels{"kind": "other"}, &e.others),
		gauge("http_requests_awaited", "HTTP requests that wait for their body, without a place among those in work.", nil, &e.awaited),
		gauge("http_streams", "Streams of the log that clients hold open.", nil, &e.streams),
		gauge("http_request_bytes", "Estimated memory of the requests in work.", nil, &e.memory),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "meterplex_http_tenants_in_flight", Help: "Tenants whose requests hold a place, a stream or memory."}, func() float64 { return float64(e.rates.Holding()) }),
		gauge("http_connections", "Connections that clients hold open.", nil, &e.connections),
	}
}

// answered counts one request. All requests without a route share one label, otherwise a
// scanner could create any number of label values.
func (m *requestMetrics) answered(route *auth.Route, method string, status int, took time.Duration) {
	if route == nil {
		method = "none"
	}
	meters := m.metersOf(answerKind{route, method, status})
	meters.requests.Inc()
	meters.seconds.Observe(took.Seconds())
}

// metersOf caches the meters of each kind, which saves label lookups on each request.
func (m *requestMetrics) metersOf(kind answerKind) answerMeters {
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

func routePath(r *auth.Route) string {
	if r == nil {
		return "none"
	}
	return r.Path
}
