package consume_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
)

// Usage is validated in the transaction that records it: both are there, or neither.
func TestP1_UsageIsValidatedInTheTransactionThatRecordsIt(t *testing.T) {
	w := NewDatabase(t)
	l := NewInline(w)
	tenant := l.InlineTenant()
	before := l.Seen.Applied
	if !l.Record(tenant, "calls", "a", "b", "a") || !l.Record(tenant, "other", "c") {
		t.Fatal("usage waits for the validator")
	}
	validated, rejected := l.VerdictsOf(tenant)
	if want := []string{"first", "origins", "a", "b"}; !slices.Equal(validated, want) || !slices.Equal(rejected, []string{"c"}) {
		t.Fatalf("validated %v, rejected %v, want %v and c", validated, rejected, want)
	}
	if l.Seen.Applied-before != 3 {
		t.Errorf("%d events are reported, want 3", l.Seen.Applied-before)
	}
	var transactions int
	w.Must(w.Pool.QueryRow(t.Context(), `SELECT count(DISTINCT xmin::text) FROM (
 SELECT xmin FROM event_log_rows WHERE partition = 4 AND position > (SELECT max(position) - 2 FROM event_log_rows WHERE partition = 4)
 UNION ALL SELECT xmin FROM consumer_checkpoints WHERE consumer = $1 AND partition = 4) AS written`, events.GroupValidator).
		Scan(&transactions))
	if transactions != 1 {
		t.Errorf("event, verdict and checkpoint are of %d transactions", transactions)
	}
	if got, want := w.Counts(4), (events.Counts{Accepted: 5, Validated: 4, Rejected: 1}); got != want {
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
			w := NewDatabase(t)
			c, proxied := localtest.NewCutter(t, w.URL)
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: proxied, ApplicationName: "test"})
			w.Must(err)
			t.Cleanup(pool.Close)
			l := NewInlineAt(w, pool)
			tenant := l.InlineTenant()
			before := l.Seen.Applied
			lost.arm(c).Store(1)
			if validated := l.Record(tenant, "calls", "a", "b"); validated != lost.validated || c.Reached.Load() != 1 {
				t.Fatalf("validated inline: %v, COMMITs cut: %d", validated, c.Reached.Load())
			}
			if reported := l.Seen.Applied - before; lost.validated && reported != 2 || !lost.validated && reported != 0 {
				t.Errorf("%d validations of the commit are reported", reported)
			}
		})
	}
}

// Events between the checkpoint and the usage that is recorded get their verdicts first.
func TestP10_EventsShortlyBehindAreValidatedInline(t *testing.T) {
	w := NewDatabase(t)
	l := NewInline(w)
	tenant, other := l.InlineTenant(), TenantIn(4)
	w.Append(Usage(tenant, "behind 1", "calls", 1, May), Usage(other, "behind 2", "calls", 1, May),
		Usage(tenant, "behind 3", "calls", 1, May))
	if !l.Record(tenant, "calls", "a") {
		t.Fatal("usage waits for the validator")
	}
	if got, _ := l.VerdictsOf(tenant); !slices.Equal(got, []string{"first", "origins", "behind 1", "behind 3", "a"}) {
		t.Errorf("validated %v", got)
	}
	if _, got := l.VerdictsOf(other); !slices.Equal(got, []string{"behind 2"}) {
		t.Errorf("rejected %v", got)
	}
}

// A change of the catalogue holds for the usage recorded after it, for every tenant of the partition.
func TestP2_InlineVerdictsFollowTheCatalogue(t *testing.T) {
	w := NewDatabase(t)
	l := NewInline(w)
	tenant := l.InlineTenant()
	for i, granted := range []string{"other", "calls", "other"} {
		w.Subscribe(tenant, May, Grant(granted, domain.ResetMonthly))
		if !l.Record(tenant, "calls", fmt.Sprint("calls ", i)) || !l.Record(tenant, "other", fmt.Sprint("other ", i)) {
			t.Fatal("usage waits for the validator")
		}
	}
	validated, rejected := l.VerdictsOf(tenant)
	if !slices.Equal(validated[2:], []string{"other 0", "calls 1", "other 2"}) ||
		!slices.Equal(rejected, []string{"calls 0", "other 1", "calls 2"}) {
		t.Errorf("validated %v, rejected %v", validated, rejected)
	}
}

// Usage that cannot be validated inline is recorded all the same, and left to the validator, which makes one verdict for each event.
func TestP2_UsageIsLeftToTheValidator(t *testing.T) {
	broken := func(tenant uuid.UUID) events.Pending {
		p := Usage(tenant, "broken", "calls", 1, May)
		p.Payload = []byte(`{"amount":"x"}`)
		return p
	}
	for name, prepare := range map[string]func(t *testing.T, l *Inline, tenant uuid.UUID){
		"while it holds the checkpoint": func(t *testing.T, l *Inline, _ uuid.UUID) {
			tx, err := l.Pool.Begin(t.Context())
			l.Must(err)
			_, err = tx.Exec(t.Context(), `SELECT FROM consumer_checkpoints WHERE consumer = $1 AND partition = 4 FOR UPDATE`,
				events.GroupValidator)
			l.Must(err)
			t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		},
		"far behind": func(_ *testing.T, l *Inline, tenant uuid.UUID) {
			var many []events.Pending
			for i := range 501 {
				many = append(many, Usage(tenant, fmt.Sprint("many ", i), "calls", 1, May))
			}
			l.Append(many...)
		},
		"an event that cannot be folded": func(_ *testing.T, l *Inline, tenant uuid.UUID) { l.Payloads.Allow(); l.Append(broken(tenant)) },
		"a withheld event": func(t *testing.T, l *Inline, tenant uuid.UUID) {
			at := l.Append(Usage(tenant, "withheld", "calls", 1, May))[0]
			_, err := l.Pool.Exec(t.Context(), `INSERT INTO withheld_records VALUES ($1, $2, $3, $4, $5, 'too large')`, at.Partition,
				at.Number, events.TopicUsageRaw, tenant, NewID())
			l.Must(err)
		},
		"a checkpoint beyond the log": func(t *testing.T, l *Inline, _ uuid.UUID) {
			_, err := l.Pool.Exec(t.Context(),
				`UPDATE consumer_checkpoints SET position = position + 1000 WHERE consumer = $1 AND partition = 4`, events.GroupValidator)
			l.Must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewDatabase(t)
			l := NewInline(w)
			tenant := l.InlineTenant()
			prepare(t, l, tenant)
			at := l.Checkpoint(events.GroupValidator, 4)
			if l.Record(tenant, "calls", "a") {
				t.Fatal("it was validated")
			}
			if got := l.Checkpoint(events.GroupValidator, 4); got != at {
				t.Errorf("the checkpoint moved from %d to %d", at, got)
			}
			if validated, _ := l.VerdictsOf(tenant); slices.Contains(validated, "a") || len(l.Read(events.TopicUsageRaw, 4, 0)) < 3 {
				t.Errorf("it is not recorded, or has a verdict: %v", validated)
			}
		})
	}
}

// In a process to which the pipe does not deliver the partition, another validator works on it.
func TestP2_UsageOfAnotherValidatorsPartitionIsLeft(t *testing.T) {
	w := NewDatabase(t)
	l := NewInline(w)
	tenant := TenantIn(4)
	l.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	if l.Record(tenant, "calls", "a") || l.Record(tenant, "calls", "b") {
		t.Fatal("it was validated")
	}
	l.Ready(4)
	if !l.Record(tenant, "calls", "c") {
		t.Fatal("it waits for the validator")
	}
	if got, _ := l.VerdictsOf(tenant); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("validated %v", got)
	}
}

// Inline validation holds heads, which come after checkpoints in the order of locks: it waits for no checkpoint.
func TestInlineValidationWaitsForNoCheckpoint(t *testing.T) {
	y := NewRebuilds(t)
	l := NewInline(y.Database)
	tenant := l.InlineTenant()
	tx, err := l.Pool.Begin(t.Context())
	l.Must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SELECT FROM consumer_checkpoints WHERE consumer = $1 AND partition = 4 FOR UPDATE`,
		events.GroupValidator)
	l.Must(err)
	done := make(chan error, 1)
	go func() {
		_, err := l.Inlined.Submit(context.Background(), tenant, []metering.Submitted{{Pending: Usage(tenant, "a", "calls", 1, May)}})
		done <- err
	}()
	for waited := false; ; {
		select {
		case err := <-done:
			l.Must(err)
			return
		default:
		}
		if !waited && y.LockWaiters() > 0 {
			waited = true
			t.Error("the transaction that records usage waits for the validator's checkpoint")
		}
	}
}
