package projectionstest

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/recent"
	"github.com/meterplex/meterplex/projections/consume"
)

// Inline is a second process on the fixture's database: it records usage and validates it inline.
type Inline struct {
	*Database
	Inlined   *eventlog.Log
	recent    *recent.Cache
	readers   map[events.Topic]*recent.Reader
	validator *consume.Runner
	Seen      *Tally
}

// NewInline makes the process on the fixture's pool.
func NewInline(w *Database) *Inline {
	w.Helper()
	return NewInlineAt(w, w.Pool)
}

// NewInlineAt is newInlineLog, with a pool of its own for the submissions.
func NewInlineAt(w *Database, pool *pgxpool.Pool) *Inline {
	w.Helper()
	l := &Inline{Database: w, recent: recent.New(), readers: map[events.Topic]*recent.Reader{}}
	for _, topic := range []events.Topic{events.TopicUsageRaw, events.TopicUsageValidated} {
		l.readers[topic] = l.recent.Reader(topic, nil)
	}
	l.validator, l.Seen = w.Validator()
	l.Tell(l.validator)
	var err error
	l.Inlined, err = eventlog.New(w.Context(), pool, eventlog.Config{
		Producer: events.Producer{Service: "test", Instance: "2", Commit: "0"}, LongestWait: time.Hour,
		Inline: consume.NewInline(l.validator.Consumer, l.readers[events.TopicUsageRaw], nil, w.Payloads.Observer(l.Seen),
			slog.New(slog.DiscardHandler)),
		Written: w.Payloads.Written, Recent: l.recent,
	})
	w.Must(err)
	w.Cleanup(l.Inlined.Close)
	l.validator.Log = l.Inlined
	return l
}

// Tell makes a consumer one of this process: it has the events that the process commits in memory.
func (l *Inline) Tell(r *consume.Runner) {
	r.Cache = l.recent
	if reader, reads := l.readers[r.Consumer.Topic]; reads {
		r.Recent = reader
	}
}

// Committed makes events those of this process.
func (l *Inline) Committed(list []*events.Envelope) { l.recent.Put(list) }

// Ready brings the validator of this process to the end of a partition, by the pipe.
func (l *Inline) Ready(partition int16) {
	l.Helper()
	l.Process(l.validator, l.Topic(events.TopicUsageRaw, partition, l.Checkpoint(events.GroupValidator, partition)))
}

// Record submits usage of one feature, and returns whether its partition is validated up to it.
func (l *Inline) Record(tenant uuid.UUID, feature string, ids ...string) (validated bool) {
	l.Helper()
	var batch []metering.Submitted
	for _, id := range ids {
		batch = append(batch, metering.Submitted{Pending: Usage(tenant, id, feature, 1, May)})
	}
	outcomes, err := l.Inlined.Submit(context.Background(), tenant, batch)
	l.Must(err)
	last := slices.MaxFunc(outcomes, func(a, b metering.Outcome) int { return cmp.Compare(a.Position.Number, b.Position.Number) }).Position
	return l.Checkpoint(events.GroupValidator, last.Partition) == last.Number
}

// VerdictsOf returns the ids of a tenant's validated and rejected events, in the order of their verdicts.
func (l *Inline) VerdictsOf(tenant uuid.UUID) (validated, rejected []string) {
	l.Helper()
	p := events.PartitionOf(tenant)
	for _, e := range l.Read(events.TopicUsageValidated, p, 0) {
		if e.TenantID == tenant {
			validated = append(validated, Decode[events.Validated](l.Database, e).EventID)
		}
	}
	for _, e := range l.Read(events.TopicUsageDeadLetter, p, 0) {
		if e.TenantID == tenant && e.Subject == events.UsageRejected {
			rejected = append(rejected, Decode[events.Rejected](l.Database, e).EventID)
		}
	}
	return validated, rejected
}

// InlineTenant has usage that the validator of the process has folded.
func (l *Inline) InlineTenant() uuid.UUID {
	l.Helper()
	tenant := TenantIn(4)
	l.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	l.Append(Usage(tenant, "first", "calls", 1, May))
	l.Ready(4)
	l.Record(tenant, "calls", "origins") // the verdicts' origin has a number from now on
	l.Ready(4)
	return tenant
}
