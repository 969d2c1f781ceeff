package prometheus

import (
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/infra/postgres"
)

// Queue registers gauges of what waits to be committed.
func (m *Metrics) Queue(registry *prom.Registry, log *postgres.Log) {
	gauge := func(name, help string, read func(postgres.Queue) float64) {
		registry.MustRegister(prom.NewGaugeFunc(prom.GaugeOpts{Name: "meterplex_" + name, Help: help}, func() float64 { return read(log.Queue()) }))
	}
	gauge("ingest_queue_rows", "Events that wait for their commit.", func(q postgres.Queue) float64 { return float64(q.Rows) })
	gauge("ingest_queue_bytes", "What the log will keep of them beside their keys.", func(q postgres.Queue) float64 { return float64(q.Bytes) })
	gauge("ingest_queue_wait_seconds", "How long the longest queue takes, as estimated.", func(q postgres.Queue) float64 { return q.Wait.Seconds() })
}
