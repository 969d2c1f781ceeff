package projections_test

import (
	"testing"

	"github.com/meterplex/meterplex/domain"
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
	lists := func() (events, letters, conflicts error) {
		_, events = s.reads.UsageEvents(t.Context(), tenantViewer(tenant), audit.EventQuery{TenantID: tenant, Wait: wait})
		_, letters = s.reads.DeadLetters(t.Context(), operator, deadletters.DeadLetterQuery{TenantID: &tenant, Wait: wait})
		_, conflicts = s.reads.Conflicts(t.Context(), tenantViewer(tenant), tenant, 10, "", wait)
		return events, letters, conflicts
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
