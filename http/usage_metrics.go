package http

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/edge"
)

// metrics counts ingest. No label names a tenant.
type metrics struct {
	verdicts *ingested
	seconds  prometheus.Histogram
}

// newMetrics registers the metrics of ingest.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	if registerer == nil {
		registerer = prometheus.NewRegistry()
	}
	verdicts, err := newIngested(registerer)
	if err != nil {
		return nil, err
	}
	m := &metrics{verdicts, prometheus.NewHistogram(prometheus.HistogramOpts{Name: "meterplex_ingest_duration_seconds", Buckets: edge.LatencyBuckets(),
		Help: "From the body of an ingest request to its verdicts."})}
	return m, registerer.Register(m.seconds)
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
