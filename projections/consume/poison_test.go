package consume_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
)

// A consumer whose dead letter cannot be written stops there, whatever the reason:
// it reports this, skips no event, and resumes once the dead letter can be written.
func TestP3_AFailingDeadLetterStopsTheConsumer(t *testing.T) {
	for name, way := range map[string]struct{ spoil, heal string }{
		"refused": {`
			CREATE FUNCTION no_letters() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF NEW.subject = 11 THEN RAISE EXCEPTION 'no dead letters today'; END IF; RETURN NEW; END $$;
			CREATE TRIGGER no_letters BEFORE INSERT ON event_log_rows FOR EACH ROW EXECUTE FUNCTION no_letters()`,
			`DROP TRIGGER no_letters ON event_log_rows`},
		"not permitted": {`REVOKE INSERT ON event_log_rows FROM meterplex_worker`, `GRANT INSERT ON event_log_rows TO meterplex_worker`},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewPipeline(t)
			owner := func(sql string) {
				c, err := pgx.Connect(context.Background(), s.URL)
				s.Must(err)
				_, err = c.Exec(context.Background(), sql)
				s.Must(err)
				s.Must(c.Close(context.Background()))
			}
			tenant := TenantIn(6)
			s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly))
			s.Append(Usage(tenant, "a", "calls", 1, May), Usage(tenant, "bad", "panics", 1, May), Usage(tenant, "b", "calls", 1, May))
			s.Drain(s.Validating)
			r, seen := s.BrokenAggregator()
			records := s.Topic(events.TopicUsageValidated, 6, 0)

			owner(way.spoil)
			for n := range 3 {
				if err := r.Process(t.Context(), records); err == nil {
					t.Fatal("a record was acknowledged whose dead letter is not there")
				}
				if s.Checkpoint(events.GroupAggregator, 6) != 0 || len(s.Aggregates()) != 0 || seen.Errors != n+1 || seen.Applied != 0 {
					t.Fatalf("the consumer went on: told %+v", seen)
				}
			}
			owner(way.heal)
			for range 2 {
				s.Process(r, records)
			}
			if appliedTo(s.Database, tenant, "calls") != 2 || s.Counts(6).Parked != 1 ||
				len(s.Read(events.TopicUsageDeadLetter, 6, 0)) != 1 {
				t.Errorf("aggregates %+v, counts %+v", s.Aggregates(), s.Counts(6))
			}
			identity, err := s.Reads.Identity(t.Context())
			if err != nil || !identity.Holds {
				t.Errorf("%+v %v", identity, err)
			}
		})
	}
}

// applier is a handler of one function.
type applier func(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error)

func (a applier) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
	return a(ctx, tx, g, batch)
}

// A retry that fails again updates the first dead letter; one that succeeds closes it.
func TestReaggregatedFoldsAndClosesItsLetter(t *testing.T) {
	w := NewDatabase(t)
	tenant := TenantIn(6)
	first := NewID()
	again := func(attempt int, period string) events.Pending {
		p := Verdict(tenant, "calls", 5)
		var v events.Validated
		w.Must(json.Unmarshal(p.Payload, &v))
		v.PeriodKey = period
		p.Subject, p.DedupeKey, p.Counts = events.Reaggregated, events.KeyRetry(first, attempt), events.Counts{Parked: -1}
		var err error
		p.Payload, err = json.Marshal(events.Reaggregate{DeadLetterID: first, Attempt: attempt, Validated: v})
		w.Must(err)
		return p
	}
	w.Append(again(1, "someday"), again(2, "2026-05"))
	r, _ := w.Aggregator(nil)
	w.Process(r, w.Topic(events.TopicUsageValidated, 6, 0))
	letters := w.Read(events.TopicUsageDeadLetter, 6, 0)
	if len(letters) != 2 || appliedTo(w, tenant, "calls") != 1 {
		t.Fatalf("%d letters, aggregates %+v", len(letters), w.Aggregates())
	}
	byKey := map[string]events.Envelope{letters[0].DedupeKey: letters[0], letters[1].DedupeKey: letters[1]}
	failed, closed := byKey[events.KeyFailedAgain(first, 1)], byKey[events.KeyClosed(first)]
	if f := Decode[events.Failed](w, failed); f.DeadLetterID != first || f.Attempt != 1 {
		t.Errorf("failed again %+v", f)
	}
	if c := Decode[events.Closed](w, closed); c.DeadLetterID != first || c.Status != events.StatusResolved {
		t.Errorf("closed %+v", c)
	}
	if got := w.Counts(6); got.Parked != -1 { // two retries took two away, one failure put one back
		t.Errorf("parked %d", got.Parked)
	}
}

// An event that is read from memory and cannot be folded becomes a dead letter as any other.
func TestP3_AnEventFromMemoryThatFailsBecomesADeadLetter(t *testing.T) {
	w := NewDatabase(t)
	w.Payloads.Allow() // one is no verdict
	l := NewInline(w)
	panics := func(tenant uuid.UUID) events.Pending { return Verdict(tenant, "panics", 1) }
	noVerdict := func(tenant uuid.UUID) events.Pending {
		bad := Verdict(tenant, "calls", 1)
		bad.Payload = json.RawMessage(`{}`)
		return bad
	}
	for p, fails := range map[int16]func(uuid.UUID) events.Pending{11: panics, 12: noVerdict} {
		tenant := TenantIn(p)
		aggregator, seen := w.BrokenAggregator()
		l.Tell(aggregator)
		w.Append(Verdict(tenant, "calls", 1))
		w.Process(aggregator, w.Topic(events.TopicUsageValidated, p, 0))
		fromLog := seen.FromLog
		at := w.Append(fails(tenant), Verdict(tenant, "calls", 1))
		l.Committed(Separate(w.Read(events.TopicUsageValidated, p, at[0].Number-1)))
		if n, err := aggregator.ReadUpTo(t.Context(), aggregator.Recent.Ahead()); err != nil || n != 2 || seen.FromLog != fromLog {
			t.Errorf("folded %d events, %d from the database: %v", n, seen.FromLog-fromLog, err)
		}
		w.Process(aggregator, w.Topic(events.TopicUsageValidated, p, 0))
		letters := w.Read(events.TopicUsageDeadLetter, p, 0)
		if len(letters) != 1 || Decode[events.Failed](w, letters[0]).SourcePosition != at[0].Number || appliedTo(w, tenant, "calls") != 2 {
			t.Errorf("%+v, %d calls applied", letters, appliedTo(w, tenant, "calls"))
		}
	}
}
