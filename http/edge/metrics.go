package edge

import (
	"errors"
	"maps"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
)

// requestMetrics counts answers. No label names a tenant.
type requestMetrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	answers  map[string]objectiveMeters // by objective
	checks   prometheus.Histogram
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

// objectiveMeters count the answers of an SLO.
type objectiveMeters struct{ ok, failed prometheus.Counter }

// LatencyBuckets are the buckets of all durations of HTTP: among them the bounds of the SLOs, 4 ms of checks and 50 ms of ingest.
func LatencyBuckets() []float64 {
	return []float64{.0005, .001, .002, .004, .008, .016, .032, .05, .064, .128, .25, .5, 1, 2.5, 10, 30}
}

// newRequestMetrics registers the metrics and the gauges of requests in flight.
func newRequestMetrics(registerer prometheus.Registerer, gauges ...prometheus.Collector) (*requestMetrics, error) {
	if registerer == nil {
		registerer = prometheus.NewRegistry()
	}
	m := &requestMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_http_requests_total",
			Help: "HTTP requests answered."}, []string{"method", "route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "meterplex_http_request_duration_seconds",
			Buckets: LatencyBuckets(),
			Help:    "From the header of a request to the end of its answer."}, []string{"method", "route"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_http_refused_total",
			Help: "HTTP requests that were refused for now (429, 503), by the exhausted resource."}, []string{"reason"}),
	}
	for _, reason := range problem.Reasons() {
		m.refused.WithLabelValues(reason)
	}
	answers := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_objective_requests_total",
		Help: "Answers that count for an SLO, by result: error is 5xx. An answer that waits for a position, or is refused for the share " +
			"of its tenant, does not count."}, []string{"objective", "result"})
	m.answers = map[string]objectiveMeters{}
	for _, o := range auth.Objectives() {
		m.answers[o] = objectiveMeters{answers.WithLabelValues(o, "ok"), answers.WithLabelValues(o, "error")}
	}
	m.checks = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "meterplex_check_duration_seconds", Buckets: LatencyBuckets(),
		Help: "From the header of a check of one entitlement to the end of its answer. A check that waits for a position does not count."})
	var faults []error
	for _, c := range append(gauges, m.requests, m.seconds, m.refused, answers, m.checks) {
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
	gauge := func(name, help string, labels prometheus.Labels, c interface{ Load() int64 }) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "meterplex_" + name, Help: help, ConstLabels: labels}, func() float64 {
			return float64(c.Load())
		})
	}
	const requests, inWork = "http_requests_in_flight", "HTTP requests in work."
	const memory, held = "http_request_bytes", "Estimated memory of the requests in work, and of answers that clients have not read."
	return []prometheus.Collector{
		gauge(requests, inWork, prometheus.Labels{"kind": "ingest"}, &e.ingest.Slots),
		gauge(requests, inWork, prometheus.Labels{"kind": "other"}, &e.other.Slots),
		gauge(memory, held, prometheus.Labels{"kind": "ingest"}, &e.ingest.Memory),
		gauge(memory, held, prometheus.Labels{"kind": "other"}, &e.other.Memory),
		gauge("http_requests_awaited", "HTTP requests that wait for their body, without a slot.", nil, &e.awaited),
		gauge("http_streams", "Streams of the log that clients hold open.", nil, &e.streams),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "meterplex_http_tenants_in_flight",
			Help: "Tenants whose requests hold a slot, a stream or memory."}, func() float64 { return float64(e.rates.Holding()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "meterplex_http_connections", Help: "Connections that clients hold open."},
			func() float64 { return float64(e.connections.Load()) }),
		e.connections.closed,
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

// objective counts an answer for an SLO. A duration that contains the sending of a body is not the service's.
func (m *requestMetrics) objective(route *auth.Route, status int, took time.Duration) {
	if status >= 500 {
		m.answers[route.Objective].failed.Inc()
		return
	}
	m.answers[route.Objective].ok.Inc()
	if route.Objective == auth.ObjectiveCheck && route.Method == http.MethodGet {
		m.checks.Observe(took.Seconds())
	}
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
	meters := answerMeters{m.requests.WithLabelValues(kind.method, path, strconv.Itoa(kind.status)),
		m.seconds.WithLabelValues(kind.method, path)}
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
