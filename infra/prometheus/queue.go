package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

// Queue registers gauges of the queue of events to be committed.
func (m *Metrics) Queue(registry *prom.Registry, log *eventlog.Log) {
	gauge := func(name, help string, read func(eventlog.Queue) float64) {
		registry.MustRegister(prom.NewGaugeFunc(prom.GaugeOpts{Name: "meterplex_" + name, Help: help}, func() float64 {
			return read(log.Queue())
		}))
	}
	gauge("ingest_queue_rows", "Events that wait for their commit.", func(q eventlog.Queue) float64 { return float64(q.Rows) })
	gauge("ingest_queue_bytes", "Bytes of these events in the log, without keys.", func(q eventlog.Queue) float64 {
		return float64(q.Bytes)
	})
	gauge("ingest_queue_wait_seconds", "Estimated wait of the longest queue.", func(q eventlog.Queue) float64 { return q.Wait.Seconds() })
}
