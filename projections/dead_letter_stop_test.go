package projections_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
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
			s := newPipelineFixture(t)
			owner := func(sql string) {
				c, err := pgx.Connect(context.Background(), s.url)
				s.must(err)
				_, err = c.Exec(context.Background(), sql)
				s.must(err)
				s.must(c.Close(context.Background()))
			}
			tenant := tenantIn(6)
			s.subscribe(tenant, may, grant("calls", domain.ResetMonthly), grant("panics", domain.ResetMonthly))
			s.append(usageEvent(tenant, "a", "calls", 1, may), usageEvent(tenant, "bad", "panics", 1, may), usageEvent(tenant, "b", "calls", 1, may))
			s.drain(s.validating)
			r, seen := s.aggregator(poisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}})
			records := s.topic(events.TopicUsageValidated, 6, 0)

			owner(way.spoil)
			for n := range 3 {
				if err := r.Process(t.Context(), records); err == nil {
					t.Fatal("a record was acknowledged whose dead letter is not there")
				}
				if s.checkpoint(events.GroupAggregator, 6) != 0 || len(s.aggregates()) != 0 || seen.errors != n+1 || seen.applied != 0 {
					t.Fatalf("the consumer went on: told %+v", seen)
				}
			}
			owner(way.heal)
			for range 2 {
				s.process(r, records)
			}
			if s.applied(tenant, "calls") != 2 || s.counts(6).Parked != 1 || len(s.read(events.TopicUsageDeadLetter, 6, 0)) != 1 {
				t.Errorf("aggregates %+v, counts %+v", s.aggregates(), s.counts(6))
			}
			identity, err := s.reads.Identity(t.Context())
			if err != nil || !identity.Holds {
				t.Errorf("%+v %v", identity, err)
			}
		})
	}
}
