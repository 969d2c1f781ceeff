package api

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/codes"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/overview"
)

// metrics counts ingest. No label names a tenant.
type metrics struct {
	Verdicts *ingested
	Seconds  prometheus.Histogram
}

// newMetrics registers the metrics of ingest.
func newMetrics(registerer prometheus.Registerer, counted *overview.Verdicts) (*metrics, error) {
	if registerer == nil {
		registerer = prometheus.NewRegistry()
	}
	verdicts, err := newIngested(registerer, counted)
	if err != nil {
		return nil, err
	}
	m := &metrics{verdicts, prometheus.NewHistogram(prometheus.HistogramOpts{Name: "meterplex_ingest_duration_seconds",
		Buckets: edge.LatencyBuckets(),
		Help:    "From the body of an ingest request to the results of its events."})}
	return m, registerer.Register(m.Seconds)
}

// ingested counts verdicts of all ingest transports. No later metric has the class of the tenant
// (docs/decisions/0023-tenant-class.md).
type ingested struct {
	classes   map[string]*ofClass // by class of the tenant
	platform  *ofClass            // of no known tenant
	conflicts prometheus.Counter
	refused   *prometheus.CounterVec // by code
	counted   *overview.Verdicts     // of all classes
}

// ofClass counts the verdicts on events of tenants of one class.
type ofClass struct{ accepted, duplicate, conflict, rejected, denied prometheus.Counter }

// classPlatform is the label of events that belong to no tenant.
const classPlatform = "platform"

// Decided counts the outcome of a request to record n amounts, of which the log knew some before. A refused one counts once;
// of a request that records no usage, only a denial.
func (i *ingested) Decided(class string, n, known int, err error) {
	c := Counts{Accepted: n - known, Duplicates: known}
	if refusal := (*domain.Error)(nil); errors.As(err, &refusal) {
		c = Counts{Rejected: min(n, 1)}
		switch refusal.Code {
		case codeQuotaExceeded:
			c.denied = 1
		case codePayloadConflict:
			c = Counts{Conflicts: min(n, 1)}
		}
	} else if err != nil {
		return // the outcome is not known
	}
	i.Add(class, c)
}

// newIngested registers the counters, or reuses registered ones. counted may be nil.
func newIngested(registerer prometheus.Registerer, counted *overview.Verdicts) (*ingested, error) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_events_ingested_total",
		Help: "Usage events answered at ingest, by result and class of the tenant; platform: no known tenant."},
		[]string{"verdict", "tenant_class"})
	if counted == nil {
		counted = new(overview.Verdicts)
	}
	c := &ingested{
		classes: map[string]*ofClass{}, counted: counted,
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{Name: "meterplex_payload_conflicts_total",
			Help: "Events whose eventId was first used with another payload."}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_usage_refused_total",
			Help: "Usage events that ingest refused, by the code of the result: they are not billed."}, []string{"code"}),
	}
	denied := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meterplex_quota_denied_total",
		Help: "Requests to use an amount, and usage events, that a HARD limit refused, by class of the tenant."}, []string{"tenant_class"})
	var err1, err2, err3, err4 error
	events, err1 = registered(registerer, events)
	c.conflicts, err2 = registered(registerer, c.conflicts)
	denied, err3 = registered(registerer, denied)
	c.refused, err4 = registered(registerer, c.refused)
	for _, code := range codes.In(codes.Event) {
		c.refused.WithLabelValues(code)
	}
	// Create all series at the start: a rate needs the zero before the first increment.
	of := func(class string) *ofClass {
		return &ofClass{events.WithLabelValues(metering.StatusAccepted, class), events.WithLabelValues(metering.StatusDuplicate, class),
			events.WithLabelValues(metering.StatusConflict, class), events.WithLabelValues(metering.StatusRejected, class),
			denied.WithLabelValues(class)}
	}
	for _, class := range catalogue.TenantClasses() {
		c.classes[class] = of(class)
	}
	c.platform = of(classPlatform)
	return c, errors.Join(err1, err2, err3, err4)
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

// Add counts verdicts on events of a tenant of the class; an unknown class is the platform's.
func (i *ingested) Add(class string, c Counts) {
	of := i.classes[class]
	if of == nil {
		of = i.platform
	}
	refused := c.Rejected - c.heldBack
	i.counted.Add(c.Accepted, c.Duplicates, c.Conflicts, refused)
	i.conflicts.Add(float64(c.Conflicts))
	of.accepted.Add(float64(c.Accepted))
	of.duplicate.Add(float64(c.Duplicates))
	of.conflict.Add(float64(c.Conflicts))
	of.rejected.Add(float64(refused))
	of.denied.Add(float64(c.denied))
	for code, n := range c.codes {
		i.refused.WithLabelValues(code).Add(float64(n))
	}
}

// CountVerdicts returns a function that counts verdicts of other transports than HTTP in
// the same metrics, and for the overview.
func CountVerdicts(registerer prometheus.Registerer, counted *overview.Verdicts) (func(class string, verdicts []metering.EventVerdict),
	error) {
	c, err := newIngested(registerer, counted)
	return func(class string, verdicts []metering.EventVerdict) { c.Add(class, CountsOf(verdicts)) }, err
}

// Counts holds the number of events per verdict.
type Counts struct {
	Accepted, Duplicates, Conflicts, Rejected int
	denied                                    int            // of the rejected: above a limit
	heldBack                                  int            // of the rejected: because of another event of their batch
	codes                                     map[string]int // the rejected usage events by code; nil: no counts
}

// Codes that are counted.
const (
	codeQuotaExceeded   = "quota_exceeded"
	codePayloadConflict = "payload_conflict"
)

func CountsOf(verdicts []metering.EventVerdict) (c Counts) {
	for i := range verdicts {
		switch verdicts[i].Status {
		case metering.StatusAccepted:
			c.Accepted++
		case metering.StatusDuplicate:
			c.Duplicates++
		case metering.StatusConflict:
			c.Conflicts++
		default:
			c.Rejected++
			if verdicts[i].Code == metering.CodeBatchRefused {
				c.heldBack++
				continue
			}
			if verdicts[i].Code == codeQuotaExceeded {
				c.denied++
			}
			if c.codes == nil {
				c.codes = map[string]int{}
			}
			c.codes[verdicts[i].Code]++
		}
	}
	return c
}
