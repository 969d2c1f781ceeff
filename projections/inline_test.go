package projections_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/validate"
)

// inlineLog is a second process on the fixture's database: it records usage and validates it inline.
type inlineLog struct {
	*logFixture
	log       *eventlog.Log
	handed    *consume.Handover
	validator *consume.Runner
	seen      *tally
}

func newInlineLog(w *logFixture, handed *consume.Handover) *inlineLog {
	w.Helper()
	return newInlineLogAt(w, w.pool, handed)
}

// newInlineLogAt is newInlineLog, with a pool of its own for the submissions.
func newInlineLogAt(w *logFixture, pool *pgxpool.Pool, handed *consume.Handover) *inlineLog {
	w.Helper()
	l := &inlineLog{logFixture: w, handed: handed}
	l.validator, l.seen = w.validator()
	l.validator.Handed = handed
	var err error
	l.log, err = eventlog.New(w.Context(), pool, eventlog.Config{
		Producer: events.Producer{Service: "test", Instance: "2", Commit: "0"}, LongestWait: time.Hour,
		Inline:  consume.NewInline(l.validator.Consumer, handed, nil, w.payloads.Observer(l.seen), slog.New(slog.DiscardHandler)),
		Written: w.payloads.Written,
	})
	w.must(err)
	w.Cleanup(l.log.Close)
	l.validator.Log = l.log
	return l
}

// ready brings the validator of this process to the end of a partition, by the pipe.
func (l *inlineLog) ready(partition int16) {
	l.Helper()
	l.process(l.validator, l.topic(events.TopicUsageRaw, partition, l.checkpoint(events.GroupValidator, partition)))
}

// record submits usage of one feature, and returns whether its partition is validated up to it.
func (l *inlineLog) record(tenant uuid.UUID, feature string, ids ...string) (validated bool) {
	l.Helper()
	var batch []commands.Submitted
	for _, id := range ids {
		batch = append(batch, commands.Submitted{Pending: usageEvent(tenant, id, feature, 1, may)})
	}
	places, err := l.log.Submit(context.Background(), tenant, batch)
	l.must(err)
	last := slices.MaxFunc(places, func(a, b commands.Placement) int { return cmp.Compare(a.Position.Number, b.Position.Number) }).Position
	return l.checkpoint(events.GroupValidator, last.Partition) == last.Number
}

// verdictsOf returns the ids of a tenant's validated and rejected events, in the order of their verdicts.
func (l *inlineLog) verdictsOf(tenant uuid.UUID) (validated, rejected []string) {
	l.Helper()
	p := events.PartitionOf(tenant)
	for _, e := range l.read(events.TopicUsageValidated, p, 0) {
		if e.TenantID == tenant {
			validated = append(validated, decode[events.Validated](l.logFixture, e).EventID)
		}
	}
	for _, e := range l.read(events.TopicUsageDeadLetter, p, 0) {
		if e.TenantID == tenant && e.Subject == events.UsageRejected {
			rejected = append(rejected, decode[events.Rejected](l.logFixture, e).EventID)
		}
	}
	return validated, rejected
}

// inlineTenant has usage that the validator of the process has folded.
func (l *inlineLog) inlineTenant() uuid.UUID {
	l.Helper()
	tenant := tenantIn(4)
	l.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	l.append(usageEvent(tenant, "first", "calls", 1, may))
	l.ready(4)
	l.record(tenant, "calls", "origins") // the verdicts' origin has a number from now on
	l.ready(4)
	return tenant
}

// Usage is validated in the transaction that records it: both are there, or neither.
func TestP1_UsageIsValidatedInTheTransactionThatRecordsIt(t *testing.T) {
	w := newLogFixture(t)
	l := newInlineLog(w, consume.NewHandover())
	tenant := l.inlineTenant()
	before := l.seen.applied
	if !l.record(tenant, "calls", "a", "b", "a") || !l.record(tenant, "other", "c") {
		t.Fatal("usage waits for the validator")
	}
	validated, rejected := l.verdictsOf(tenant)
	if want := []string{"first", "origins", "a", "b"}; !slices.Equal(validated, want) || !slices.Equal(rejected, []string{"c"}) {
		t.Fatalf("validated %v, rejected %v, want %v and c", validated, rejected, want)
	}
	if l.seen.applied-before != 3 {
		t.Errorf("%d events are reported, want 3", l.seen.applied-before)
	}
	var transactions int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(DISTINCT xmin::text) FROM (
 SELECT xmin FROM event_log_rows WHERE partition = 4 AND position > (SELECT max(position) - 2 FROM event_log_rows WHERE partition = 4)
 UNION ALL SELECT xmin FROM consumer_checkpoints WHERE consumer = $1 AND partition = 4) AS written`, events.GroupValidator).Scan(&transactions))
	if transactions != 1 {
		t.Errorf("event, verdict and checkpoint are of %d transactions", transactions)
	}
	if got, want := w.counts(4), (events.Counts{Accepted: 5, Validated: 4, Rejected: 1}); got != want {
		t.Errorf("counts %+v, want %+v", got, want)
	}
}

// The validation of a COMMIT is reported once, if its answer is lost, too: readers wait for the move of the checkpoint.
func TestP1_AnInlineValidationFoundInTheLogIsReported(t *testing.T) {
	for name, lost := range map[string]struct {
		arm       func(*localtest.Cutter) *atomic.Int32
		validated bool
	}{
		"answer lost":  {func(c *localtest.Cutter) *atomic.Int32 { return &c.Answer }, true},
		"request lost": {func(c *localtest.Cutter) *atomic.Int32 { return &c.Request }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newLogFixture(t)
			c, proxied := localtest.NewCutter(t, w.url)
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: proxied, ApplicationName: "test"})
			w.must(err)
			t.Cleanup(pool.Close)
			l := newInlineLogAt(w, pool, consume.NewHandover())
			tenant := l.inlineTenant()
			before := l.seen.applied
			lost.arm(c).Store(1)
			if validated := l.record(tenant, "calls", "a", "b"); validated != lost.validated || c.Reached.Load() != 1 {
				t.Fatalf("validated inline: %v, COMMITs cut: %d", validated, c.Reached.Load())
			}
			if reported := l.seen.applied - before; lost.validated && reported != 2 || !lost.validated && reported != 0 {
				t.Errorf("%d validations of the commit are reported", reported)
			}
		})
	}
}

// Events between the checkpoint and the usage that is recorded get their verdicts first.
func TestP10_EventsShortlyBehindAreValidatedInline(t *testing.T) {
	w := newLogFixture(t)
	l := newInlineLog(w, consume.NewHandover())
	tenant, other := l.inlineTenant(), tenantIn(4)
	w.append(usageEvent(tenant, "behind 1", "calls", 1, may), usageEvent(other, "behind 2", "calls", 1, may), usageEvent(tenant, "behind 3", "calls", 1, may))
	if !l.record(tenant, "calls", "a") {
		t.Fatal("usage waits for the validator")
	}
	if got, _ := l.verdictsOf(tenant); !slices.Equal(got, []string{"first", "origins", "behind 1", "behind 3", "a"}) {
		t.Errorf("validated %v", got)
	}
	if _, got := l.verdictsOf(other); !slices.Equal(got, []string{"behind 2"}) {
		t.Errorf("rejected %v", got)
	}
}

// A change of the catalogue holds for the usage recorded after it, for every tenant of the partition.
func TestP2_InlineVerdictsFollowTheCatalogue(t *testing.T) {
	w := newLogFixture(t)
	l := newInlineLog(w, consume.NewHandover())
	tenant := l.inlineTenant()
	for i, granted := range []string{"other", "calls", "other"} {
		w.subscribe(tenant, may, grant(granted, domain.ResetMonthly))
		if !l.record(tenant, "calls", fmt.Sprint("calls ", i)) || !l.record(tenant, "other", fmt.Sprint("other ", i)) {
			t.Fatal("usage waits for the validator")
		}
	}
	validated, rejected := l.verdictsOf(tenant)
	if !slices.Equal(validated[2:], []string{"other 0", "calls 1", "other 2"}) || !slices.Equal(rejected, []string{"calls 0", "other 1", "calls 2"}) {
		t.Errorf("validated %v, rejected %v", validated, rejected)
	}
}

// Usage that cannot be validated inline is recorded all the same, and left to the validator, which makes one verdict for each event.
func TestP2_UsageIsLeftToTheValidator(t *testing.T) {
	broken := func(tenant uuid.UUID) events.Pending {
		p := usageEvent(tenant, "broken", "calls", 1, may)
		p.Payload = []byte(`{"amount":"x"}`)
		return p
	}
	for name, prepare := range map[string]func(t *testing.T, l *inlineLog, tenant uuid.UUID){
		"while it holds the checkpoint": func(t *testing.T, l *inlineLog, _ uuid.UUID) {
			tx, err := l.pool.Begin(t.Context())
			l.must(err)
			_, err = tx.Exec(t.Context(), `SELECT FROM consumer_checkpoints WHERE consumer = $1 AND partition = 4 FOR UPDATE`, events.GroupValidator)
			l.must(err)
			t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		},
		"far behind": func(_ *testing.T, l *inlineLog, tenant uuid.UUID) {
			var many []events.Pending
			for i := range 501 {
				many = append(many, usageEvent(tenant, fmt.Sprint("many ", i), "calls", 1, may))
			}
			l.append(many...)
		},
		"an event that cannot be folded": func(_ *testing.T, l *inlineLog, tenant uuid.UUID) { l.payloads.Allow(); l.append(broken(tenant)) },
		"a withheld event": func(t *testing.T, l *inlineLog, tenant uuid.UUID) {
			at := l.append(usageEvent(tenant, "withheld", "calls", 1, may))[0]
			_, err := l.pool.Exec(t.Context(), `INSERT INTO withheld_records VALUES ($1, $2, $3, $4, $5, 'too large')`, at.Partition, at.Number, events.TopicUsageRaw, tenant, newID())
			l.must(err)
		},
		"a checkpoint beyond the log": func(t *testing.T, l *inlineLog, _ uuid.UUID) {
			_, err := l.pool.Exec(t.Context(), `UPDATE consumer_checkpoints SET position = position + 1000 WHERE consumer = $1 AND partition = 4`, events.GroupValidator)
			l.must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newLogFixture(t)
			l := newInlineLog(w, consume.NewHandover())
			tenant := l.inlineTenant()
			prepare(t, l, tenant)
			at := l.checkpoint(events.GroupValidator, 4)
			if l.record(tenant, "calls", "a") {
				t.Fatal("it was validated")
			}
			if got := l.checkpoint(events.GroupValidator, 4); got != at {
				t.Errorf("the checkpoint moved from %d to %d", at, got)
			}
			if validated, _ := l.verdictsOf(tenant); slices.Contains(validated, "a") || len(l.read(events.TopicUsageRaw, 4, 0)) < 3 {
				t.Errorf("it is not recorded, or has a verdict: %v", validated)
			}
		})
	}
}

// In a process to which the pipe does not deliver the partition, another validator works on it.
func TestP2_UsageOfAnotherValidatorsPartitionIsLeft(t *testing.T) {
	w := newLogFixture(t)
	l := newInlineLog(w, consume.NewHandover())
	tenant := tenantIn(4)
	l.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	if l.record(tenant, "calls", "a") || l.record(tenant, "calls", "b") {
		t.Fatal("it was validated")
	}
	l.ready(4)
	if !l.record(tenant, "calls", "c") {
		t.Fatal("it waits for the validator")
	}
	if got, _ := l.verdictsOf(tenant); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("validated %v", got)
	}
	if consume.NewInline(validate.Consumer(newID, new(validate.Histories)), nil, nil, nil, nil) != nil {
		t.Error("a consumer to which nothing is handed folds inline")
	}
}
