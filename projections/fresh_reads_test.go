package projections_test

import (
	"encoding/json"
	"strconv"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

func TestListsAtAPositionContainEarlierFailures(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := tenantIn(3)
	s.subscribe(tenant, may, quota("calls", -1, domain.LimitSoft, domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "good", "calls", 1, may), usageEvent(tenant, "bad", "nothing", 1, may))[1]
	wait := query.Wait{MinPosition: &at}
	lists := func() (usages, letters, conflicts error) {
		_, usages = s.reads.UsageEvents(t.Context(), tenantViewer(tenant), audit.EventQuery{TenantID: tenant, Wait: wait})
		_, letters = s.reads.DeadLetters(t.Context(), operator, deadletters.DeadLetterQuery{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant}, Wait: wait})
		_, conflicts = s.reads.Conflicts(t.Context(), tenantViewer(tenant), tenant, 10, "", wait)
		return usages, letters, conflicts
	}
	behind := func(when string) {
		t.Helper()
		a, b, c := lists()
		for _, err := range []error{a, b, c} {
			t.Log(when)
			refusedAs(t, query.ErrProjectionBehind, err)
		}
	}
	behind("nothing is decided")
	s.drain(s.validating, s.aggregating)
	behind("the rejection is not folded")
	s.drain(s.lettering)
	a, b, c := lists()
	s.must(a)
	s.must(b)
	s.must(c)
	_, err := s.reads.DeadLetters(t.Context(), operator, deadletters.DeadLetterQuery{Wait: wait})
	refusedAs(t, query.ErrPositionInvalid, err)
}

// A re-aggregated event is a verdict of its own: a figure is true at its position once the aggregator has folded it,
// and not before, whatever the validator has passed.
func TestFiguresAtAReaggregatedEventContainIt(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := tenantIn(3)
	s.subscribe(tenant, may, quota("calls", -1, domain.LimitSoft, domain.ResetMonthly))
	s.append(usageEvent(tenant, "e", "calls", 5, may))
	s.settle()
	again := verdict(tenant, "calls", 7)
	again.Subject, again.DedupeKey, again.Counts = events.Reaggregated, events.KeyRetry(newID(), 1), events.Counts{}
	var v events.Validated
	s.must(json.Unmarshal(again.Payload, &v))
	var err error
	again.Payload, err = json.Marshal(events.Reaggregate{DeadLetterID: newID(), Attempt: 1, Validated: v})
	s.must(err)
	at := s.append(again)[0]
	s.drain(s.validating) // the aggregator is stopped
	wait := query.Wait{MinPosition: &at}
	figures := func() (usage.Aggregates, error) {
		return s.reads.Aggregates(t.Context(), tenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 10, Wait: wait})
	}
	_, err = figures()
	refusedAs(t, query.ErrProjectionBehind, err)
	_, err = s.reads.Receipt(t.Context(), tenantViewer(tenant), tenant, "e", wait)
	refusedAs(t, query.ErrProjectionBehind, err)
	s.settle()
	page, err := figures()
	s.must(err)
	total := 0
	for _, a := range page.Data {
		n, err := strconv.Atoi(a.Amount.String())
		s.must(err)
		total += n
	}
	if total != 12 || page.AsOf == nil || page.AsOf.Number < at.Number {
		t.Errorf("at %s the figures are %+v as of %v, want 12 in all", at, page.Data, page.AsOf)
	}
}

func TestAReplicaAnswersUnlessAPositionIsNamed(t *testing.T) {
	s, late := newPipelineFixture(t), newPipelineFixture(t) // another database stands for a replica that is behind
	tenant := tenantIn(3)
	s.subscribe(tenant, may, quota("calls", -1, domain.LimitSoft, domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "e", "calls", 5, may))[0]
	s.settle()
	s.reads.setReplica(late.pool)
	figures := func(w query.Wait) int {
		t.Helper()
		page, err := s.reads.Aggregates(t.Context(), tenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Wait: w})
		s.must(err)
		list, err := s.reads.UsageEvents(t.Context(), tenantViewer(tenant), audit.EventQuery{TenantID: tenant, Wait: w})
		s.must(err)
		if len(page.Data) != len(list.Data) {
			t.Errorf("%d figures, %d events", len(page.Data), len(list.Data))
		}
		return len(page.Data)
	}
	if n := figures(query.Wait{}); n != 0 {
		t.Errorf("the replica was not asked: %d figures", n)
	}
	if n := figures(query.Wait{MinPosition: &at}); n != 1 {
		t.Errorf("a position was looked for on the replica: %d figures", n)
	}
}
