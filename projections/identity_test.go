package projections_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
)

// withhold withholds an event as the relay does if it alone cannot be published.
func (s *pipelineFixture) withhold(tenant uuid.UUID, e events.Envelope) {
	s.Helper()
	letter := plainEvent(tenant, events.PublishFailed, events.Counts{Parked: 1}, events.Failed{SourcePosition: e.Position.Number, Topic: e.Subject.Topic().Name(),
		KafkaOffset: -1, Stage: events.StagePublishing, Code: "publish_refused", Payload: e.Payload})
	s.must(pgx.BeginFunc(context.Background(), s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), `INSERT INTO withheld_records VALUES ($1, $2, $3, $4, $5, '')`,
			e.Position.Partition, e.Position.Number, int16(e.Subject.Topic()), tenant, letter.EventID)
		if err == nil {
			_, err = s.log.AppendTx(context.Background(), tx, []events.Pending{letter})
		}
		return err
	}))
}

// readAtMost lets a consumer read no more than n records of a partition.
func (s *pipelineFixture) readAtMost(r *consume.Runner, partition int16, n int) {
	s.Helper()
	records := s.topic(r.Consumer.Topic, partition, s.checkpoint(r.Consumer.Name, partition))
	s.process(r, records[:min(n, len(records))])
}

// P3: at every moment each accepted event is in exactly one place.
func TestP3_IdentityHoldsAtEveryMoment(t *testing.T) {
	localtest.FewChecks(t, 60)
	s := newPipelineFixture(t)
	broken, _ := s.aggregator(poisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}})
	rapid.Check(t, func(rt *rapid.T) {
		tenant := newID()
		partition := events.PartitionOf(tenant)
		s.subscribe(tenant, may, grant("calls", domain.ResetMonthly), grant("panics", domain.ResetMonthly))
		var last audit.Identity
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			s.move(rt, tenant, broken)
			identity, err := s.reads.Identity(t.Context())
			s.must(err)
			if !identity.Holds {
				rt.Fatalf("%+v", identity.Partitions[partition])
			}
			last = identity
		}
		if sum := last.Partitions[partition].Terms; sum.Accepted != sum.Applied+sum.Rejected+sum.Undecided+sum.Unapplied+sum.Parked || last.Total.Accepted < sum.Accepted {
			rt.Fatalf("%+v", last)
		}
	})
	s.settle()
	identity, err := s.reads.Identity(t.Context())
	if err != nil || identity.InFlight != 0 || identity.Total.Applied == 0 || identity.Total.Rejected == 0 || identity.Total.Parked == 0 {
		t.Errorf("settled, and every way was gone: %+v %v", identity.Total, err)
	}
}

func (s *pipelineFixture) move(rt *rapid.T, tenant uuid.UUID, broken *consume.Runner) {
	partition := events.PartitionOf(tenant)
	n := rapid.IntRange(1, 4).Draw(rt, "n")
	switch rapid.SampledFrom([]string{"record", "record", "validate", "aggregate", "withhold", "retry", "discard"}).Draw(rt, "step") {
	case "record":
		for range n {
			s.append(usageEvent(tenant, newID().String(), rapid.SampledFrom([]string{"calls", "calls", "panics", "unknown"}).Draw(rt, "feature"), 1, may))
		}
	case "validate":
		s.readAtMost(s.validating, partition, n)
	case "aggregate":
		s.readAtMost(broken, partition, n)
	case "withhold":
		on := rapid.SampledFrom([]*consume.Runner{s.validating, broken}).Draw(rt, "on")
		for _, e := range s.read(on.Consumer.Topic, partition, s.checkpoint(on.Consumer.Name, partition)) {
			if !e.Withheld && e.TenantID == tenant {
				s.withhold(tenant, e)
				return
			}
		}
	case "discard":
		s.drain(s.lettering)
		page, err := s.reads.DeadLetters(context.Background(), operator, deadletters.DeadLetterQuery{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant, Status: events.StatusFailed}, Limit: 1})
		s.must(err)
		letters := &commands.DeadLetters{Store: s.store, Now: time.Now, NewID: newID}
		for _, d := range page.Data {
			_, err := letters.Discard(context.Background(), commands.Request{By: billing}, d.ID, tenant, "a test")
			s.must(err)
		}
	case "retry":
		s.drain(s.lettering)
		page, err := s.reads.DeadLetters(context.Background(), operator, deadletters.DeadLetterQuery{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant, Stage: events.StageValidation, Status: events.StatusFailed}, Limit: 1})
		s.must(err)
		for _, d := range page.Data {
			s.retry(tenant, d.ID, d.SourcePosition.Number, d.RetryCount+1)
		}
	}
}

// A figure that is lost or counted twice is missed.
func TestP3_IdentityCountsMissingEvents(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	s.append(usageEvent(tenant, "a", "calls", 1, may), usageEvent(tenant, "b", "calls", 1, may))
	s.settle()
	for applied, missing := range map[int]int64{1: 1, 3: -1} {
		_, err := s.pool.Exec(t.Context(), `UPDATE usage_aggregates SET applied_count = $1`, applied)
		s.must(err)
		identity, err := s.reads.Identity(t.Context())
		if err != nil || identity.Holds || identity.Total.Missing != missing || identity.Partitions[events.PartitionOf(tenant)].Missing != missing {
			t.Errorf("applied %d: %+v %v", applied, identity.Total, err)
		}
	}
}
