package prometheus

import prom "github.com/prometheus/client_golang/prometheus"

// Spans returns the function that counts the spans of this instance by their results, and creates the series.
func (m *Metrics) Spans(results []string) func(result string, spans int) {
	for _, r := range results {
		m.spans.WithLabelValues(r)
	}
	return func(result string, spans int) { m.spans.WithLabelValues(result).Add(float64(spans)) }
}

// newTraces creates the metrics of traces.
func (m *Metrics) newTraces(registry *prom.Registry) {
	m.spans = prom.NewCounterVec(prom.CounterOpts{Name: "meterplex_trace_spans_total",
		Help: "Spans of sampled traces by result: queued, exported (accepted by the collector) or failed. Queued spans that are in " +
			"neither of the others were dropped, or wait."}, []string{"result"})
	registry.MustRegister(m.spans)
}
