package audit_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
)

// P3: at every moment each accepted event is in exactly one place.
func TestP3_IdentityHoldsAtEveryMoment(t *testing.T) {
	localtest.FewChecks(t, 60)
	s := NewPipeline(t)
	broken, _ := s.BrokenAggregator()
	rapid.Check(t, func(rt *rapid.T) {
		tenant := NewID()
		partition := events.PartitionOf(tenant)
		s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly))
		var last audit.Identity
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			moveOn(s, rt, tenant, broken)
			identity, err := s.Reads.Identity(t.Context())
			s.Must(err)
			if !identity.Holds {
				rt.Fatalf("%+v", identity.Partitions[partition])
			}
			last = identity
		}
		if sum := last.Partitions[partition].Terms; sum.Accepted != sum.Applied+sum.Rejected+sum.Undecided+sum.Unapplied+sum.Parked ||
			last.Total.Accepted < sum.Accepted {
			rt.Fatalf("%+v", last)
		}
	})
	s.Settle()
	identity, err := s.Reads.Identity(t.Context())
	if err != nil || identity.InFlight != 0 || identity.Total.Applied == 0 || identity.Total.Rejected == 0 || identity.Total.Parked == 0 {
		t.Errorf("settled, and every way was gone: %+v %v", identity.Total, err)
	}
}

func moveOn(s *Pipeline, rt *rapid.T, tenant uuid.UUID, broken *consume.Runner) {
	partition := events.PartitionOf(tenant)
	n := rapid.IntRange(1, 4).Draw(rt, "n")
	switch rapid.SampledFrom([]string{"record", "record", "validate", "aggregate", "withhold", "retry", "discard"}).Draw(rt, "step") {
	case "record":
		for range n {
			s.Append(Usage(tenant, NewID().String(), rapid.SampledFrom([]string{"calls", "calls", "panics", "unknown"}).Draw(rt, "feature"),
				1, May))
		}
	case "validate":
		s.ReadAtMost(s.Validating, partition, n)
	case "aggregate":
		s.ReadAtMost(broken, partition, n)
	case "withhold":
		on := rapid.SampledFrom([]*consume.Runner{s.Validating, broken}).Draw(rt, "on")
		for _, e := range s.Read(on.Consumer.Topic, partition, s.Checkpoint(on.Consumer.Name, partition)) {
			if !e.Withheld && e.TenantID == tenant {
				s.Withhold(tenant, e)
				return
			}
		}
	case "discard":
		s.Drain(s.Lettering)
		page, err := s.Reads.DeadLetters(context.Background(), Operator,
			deadletters.Query{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant, Status: events.StatusFailed},
				Limit: 1})
		s.Must(err)
		letters := &repair.DeadLetters{Store: s.Store, Now: time.Now, NewID: NewID}
		for _, d := range page.Data {
			_, err := letters.Discard(context.Background(), commands.Request{By: Billing}, d.ID, tenant, "a test")
			s.Must(err)
		}
	case "retry":
		s.Drain(s.Lettering)
		page, err := s.Reads.DeadLetters(context.Background(), Operator,
			deadletters.Query{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant, Stage: events.StageValidation,
				Status: events.StatusFailed}, Limit: 1})
		s.Must(err)
		for _, d := range page.Data {
			s.Retry(tenant, d.ID, d.SourcePosition.Number, d.RetryCount+1)
		}
	}
}

// A figure that is lost or counted twice is missed.
func TestP3_IdentityCountsMissingEvents(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	s.Append(Usage(tenant, "a", "calls", 1, May), Usage(tenant, "b", "calls", 1, May))
	s.Settle()
	for applied, missing := range map[int]int64{1: 1, 3: -1} {
		_, err := s.Pool.Exec(t.Context(), `UPDATE usage_aggregates SET applied_count = $1`, applied)
		s.Must(err)
		identity, err := s.Reads.Identity(t.Context())
		if err != nil || identity.Holds || identity.Total.Missing != missing ||
			identity.Partitions[events.PartitionOf(tenant)].Missing != missing {
			t.Errorf("applied %d: %+v %v", applied, identity.Total, err)
		}
	}
}
