// Package workqueue takes the place of a package that ruletest compiles and never calls, with the client of Kubernetes behind it.
package workqueue

// These are the metrics of a queue.
type (
	GaugeMetric         any
	SettableGaugeMetric any
	CounterMetric       any
	HistogramMetric     any
)

// SetProvider ignores its provider.
func SetProvider(any) {}
