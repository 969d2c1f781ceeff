// Package prometheus exports the metrics of the relay, the consumers and the log. No label contains a
// tenant.
package prometheus

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/state"
)

// latencies ranges from the fastest durable commit to the delay by a broker outage, with the bound of an SLO.
func latencies(bound ...float64) []float64 {
	all := append(prom.ExponentialBuckets(0.0005, 2, 18), bound...)
	slices.Sort(all)
	return all
}

// readableWithin is the bound of the SLO of end_to_end_seconds.
const readableWithin = 2

// Metrics holds the service's metrics. Operators' rules and dashboards use their names.
type Metrics struct {
	published   *prom.CounterVec
	withheld    *prom.CounterVec
	refused     *prom.CounterVec
	holes       prom.Counter
	relayErrors prom.Counter
	leases      prom.Gauge
	frozen      prom.Counter
	expired     prom.Counter

	consumed   *prom.CounterVec
	deadLetter *prom.CounterVec
	processing *prom.HistogramVec
	handled    *prom.HistogramVec
	endToEnd   *prom.HistogramVec
	skipped    *prom.CounterVec
	otherLog   *prom.CounterVec
	epochs     *prom.CounterVec
	foreign    *prom.CounterVec
	fromLog    *prom.CounterVec

	accounts    *quotaDrift
	certificate atomic.Int64 // the end of the instance's certificate, in nanoseconds; 0 without one

	sagasEnded *prom.CounterVec
	spans      *prom.CounterVec
	pushes     *prom.CounterVec // attempts
	webhooks   *webhookMetrics
	consumers  []string // with series of end_to_end_seconds
}

// New creates and registers the metrics, with gauges of the state that the instance reads, and the series of the kinds of sagas that this
// binary knows.
func New(registry *prom.Registry, read func() *state.State, sagaKinds []string) *Metrics {
	counter := func(name, help string, labels ...string) *prom.CounterVec {
		c := prom.NewCounterVec(prom.CounterOpts{Name: "meterplex_" + name, Help: help}, labels)
		registry.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prom.Gauge {
		g := prom.NewGauge(prom.GaugeOpts{Name: "meterplex_" + name, Help: help})
		registry.MustRegister(g)
		return g
	}
	histogram := func(name, help string, labels ...string) *prom.HistogramVec {
		h := prom.NewHistogramVec(prom.HistogramOpts{Name: "meterplex_" + name, Help: help, Buckets: latencies(readableWithin)}, labels)
		registry.MustRegister(h)
		return h
	}
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := &Metrics{
		published: counter("events_published_total", "Records acknowledged by the broker, including repeats.", "topic"),
		withheld:  counter("events_withheld_total", "Events whose record was permanently refused and replaced.", "topic"),
		refused: counter("publish_refused_total", "Permanent refusals of a record; registry: its subject is not registered.", "topic",
			"by"),
		holes: counter("log_holes_total",
			"Holes of the log that this instance's relay found: positions without an event, counted at each attempt.").WithLabelValues(),
		relayErrors: counter("relay_errors_total", "Failed batches, which are retried.").WithLabelValues(),
		leases:      gauge("relay_leases", "Log partitions that this instance relays."),
		expired: counter("outbox_publications_deleted_total",
			"Deleted rows of outbox_publications, whose records are older than their topic's retention.").WithLabelValues(),
		frozen: counter("frozen_sessions_ended_total", "Ended database sessions of frozen instances, which blocked others.").
			WithLabelValues(),
		consumed:   counter("events_consumed_total", "Events by consumer and result: ok, noop or error.", "topic", "consumer", "result"),
		deadLetter: counter("events_dlq_total", "Events that became dead letters.", "topic", "stage"),
		processing: histogram("event_processing_duration_seconds", "Duration of a consumer's transaction.", "consumer"),
		handled: histogram("router_message_duration_seconds", "Duration of a router's handler for one message, by result: ok or error.",
			"handler", "result"),
		endToEnd: histogram("end_to_end_seconds",
			"From an event's recording until a projection has applied it; of a validation, from the request that recorded the usage.",
			"consumer"),
		skipped: counter("inbox_dedup_skips_total", "Records that the pipe delivered again.", "consumer"),
		otherLog: counter("events_other_log_total", "Records that are skipped because they belong to another database's log.",
			"consumer"),
		epochs:  counter("log_epochs_raised_total", "Epochs of log partitions that this instance began, by reason.", "reason"),
		foreign: counter("events_foreign_total", "Records without a valid position in the log.", "consumer"),
		fromLog: counter("events_read_from_log_total",
			"Events read from the database because this process did not have them in memory.", "consumer"),
	}
	m.sagasEnded = counter("saga_completed_total",
		"Background processes ended on this instance, by outcome: success, compensated or partial.",
		"kind", "outcome")
	m.accounts = newQuotaDrift(time.Now)
	registry.MustRegister(m.certificateGauge(),
		newStateGauges(read, progressGauges(), projectionGauges(), workGauges(sagaKinds), serverGauges(), ageGauges(time.Now(), time.Now)))
	m.newTraces(registry)
	m.pushes = newPushes(registry)
	for _, kind := range sagaKinds {
		for _, outcome := range domain.SagaOutcomes() {
			m.sagasEnded.WithLabelValues(kind, outcome)
		}
	}
	m.webhooks = newWebhooks(registry)
	m.createSeries()
	return m
}

// createSeries creates every series that is known in advance. A rate needs the zero before the first event, and
// a rule cannot distinguish a missing series from an event that never happened.
func (m *Metrics) createSeries() {
	for _, t := range events.Topics() {
		if t.Topic.Outside() {
			m.deadLetter.WithLabelValues(t.Name, events.StageIngestion)
			m.createMessageSeries(t.Name, t.Consumer)
			continue
		}
		m.published.WithLabelValues(t.Name)
		m.withheld.WithLabelValues(t.Name)
		for _, by := range []string{refusedByBroker, refusedByRegistry} {
			m.refused.WithLabelValues(t.Name, by)
		}
		m.deadLetter.WithLabelValues(t.Name, events.StagePublishing)
		if t.Consumer != "" {
			m.createConsumerSeries(t.Name, t.Consumer)
		}
	}
	m.createConsumerSeries(logTopic, events.GroupEntitlements)
	m.createConsumerSeries(logTopic, events.GroupSeries)
	m.createHandlerSeries(relay.HandlerName)
	for _, reason := range eventlog.EpochReasons() {
		m.epochs.WithLabelValues(reason)
	}
	m.deadLetter.WithLabelValues(events.TopicUsageRaw.Name(), events.StageIngestion)
	m.deadLetter.WithLabelValues(events.TopicUsageRaw.Name(), events.StageValidation)
}

// Raised counts the epochs that this instance began.
func (m *Metrics) Raised(raised []eventlog.Raised) {
	for _, r := range raised {
		m.epochs.WithLabelValues(r.Reason).Inc()
	}
}

func (m *Metrics) createConsumerSeries(topic, consumer string) {
	for _, result := range []string{"ok", "noop", "error"} {
		m.consumed.WithLabelValues(topic, consumer, result)
	}
	m.deadLetter.WithLabelValues(topic, events.StageAggregation)
	m.createHandlerSeries(consumer)
	m.processing.WithLabelValues(consumer)
	m.endToEnd.WithLabelValues(consumer)
	m.consumers = append(m.consumers, consumer)
	for _, c := range []*prom.CounterVec{m.skipped, m.otherLog, m.foreign, m.fromLog} {
		c.WithLabelValues(consumer)
	}
}

func (m *Metrics) createHandlerSeries(handler string) {
	for _, result := range []string{"ok", "error"} {
		m.handled.WithLabelValues(handler, result)
	}
}

// logTopic is the topic label of a consumer that reads the log itself.
const logTopic = "log"

// Handled records a message of a router. After an error the message is sent again.
func (m *Metrics) Handled(handler string, d time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.handled.WithLabelValues(handler, result).Observe(d.Seconds())
}

// Relay returns the relay's hooks.
func (m *Metrics) Relay() relay.Observe {
	return relay.Observe{
		Published: func(t events.Topic, n int) { m.published.WithLabelValues(t.Name()).Add(float64(n)) },
		Failed:    func(error) { m.relayErrors.Inc() },
		Hole:      m.holes.Inc,
		Refused: func(t events.Topic, registry bool) {
			by := refusedByBroker
			if registry {
				by = refusedByRegistry
			}
			m.refused.WithLabelValues(t.Name(), by).Inc()
		},
		Withheld: func(t events.Topic) {
			m.withheld.WithLabelValues(t.Name()).Inc()
			m.deadLetter.WithLabelValues(t.Name(), events.StagePublishing).Inc()
		},
		Handled: m.Handled,
		Leases:  func(partitions int) { m.leases.Set(float64(partitions)) },
	}
}

// Values of the label by of publish_refused_total.
const (
	refusedByBroker   = "broker"
	refusedByRegistry = "registry"
)

// Observe implements projections.Observer.
func (m *Metrics) Observe(c *projections.Consumer, b projections.Batch) {
	topic := c.Topic.Name()
	if topic == "" {
		topic = logTopic
	}
	m.processing.WithLabelValues(c.Name).Observe(b.Took.Seconds())
	if b.Err != nil {
		m.consumed.WithLabelValues(topic, c.Name, "error").Inc()
		return
	}
	m.consumed.WithLabelValues(topic, c.Name, "ok").Add(float64(len(b.Applied) - len(b.Failed)))
	m.consumed.WithLabelValues(topic, c.Name, "error").Add(float64(len(b.Failed)))
	m.consumed.WithLabelValues(topic, c.Name, "noop").Add(float64(b.Passed + b.Duplicates))
	m.skipped.WithLabelValues(c.Name).Add(float64(b.Duplicates))
	m.otherLog.WithLabelValues(c.Name).Add(float64(b.OtherLog))
	m.foreign.WithLabelValues(c.Name).Add(float64(b.Foreign))
	m.fromLog.WithLabelValues(c.Name).Add(float64(b.FromLog))
	m.deadLetter.WithLabelValues(topic, events.StageAggregation).Add(float64(len(b.Failed)))
	m.countRefusals(c, b.Applied)
	if len(b.Applied) == 0 {
		return
	}
	endToEnd := m.endToEnd.WithLabelValues(c.Name)
	for i := range b.Applied {
		endToEnd.Observe(b.End.Sub(begunAt(&b.Applied[i])).Seconds())
	}
}

// begunAt is the time from which end_to_end_seconds counts. A verdict is caused by usage, whose id holds the time of its request:
// the figure is readable when the verdict is folded.
func begunAt(e *events.Envelope) time.Time {
	if e.Subject != events.UsageValidated || e.CausationID.Version() != 7 {
		return e.RecordedAt
	}
	return time.Unix(e.CausationID.Time().UnixTime())
}

// SagaEnded counts a saga whose last step this instance ran.
func (m *Metrics) SagaEnded(kind, outcome string) { m.sagasEnded.WithLabelValues(kind, outcome).Inc() }

// PublicationsDeleted counts publications that were deleted because their records have expired.
func (m *Metrics) PublicationsDeleted(n int64) { m.expired.Add(float64(n)) }

// FrozenEnded counts a session that was ended because it blocked others.
func (m *Metrics) FrozenEnded() { m.frozen.Inc() }

// CompareAccounts compares some accounts behind limits with the log, and returns the result of the last turn through all of them.
func (m *Metrics) CompareAccounts(ctx context.Context, pool *pgxpool.Pool) (state.Accounts, error) {
	return m.accounts.read(ctx, pool)
}

// CertificateExpires sets the end of the certificate that the instance serves with.
func (m *Metrics) CertificateExpires(at time.Time) { m.certificate.Store(at.UnixNano()) }

func (m *Metrics) certificateGauge() prom.Collector {
	return prom.NewGaugeFunc(prom.GaugeOpts{Name: "meterplex_certificate_expires_seconds",
		Help: "Time until this instance's certificate of METERPLEX_HTTP_TLS_CERT expires; NaN without one."}, func() float64 {
		end := m.certificate.Load()
		if end == 0 {
			return math.NaN()
		}
		return time.Until(time.Unix(0, end)).Seconds()
	})
}
