package projections_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
)

// lettersByEvent returns the dead letters of a tenant that have a status, by the producer's ids.
func (s *retryFixture) lettersByEvent(tenant uuid.UUID, status string) map[string]uuid.UUID {
	ids := map[string]uuid.UUID{}
	for _, l := range s.letterList(tenant, status) {
		ids[l.EventID] = l.ID
	}
	return ids
}

// Usage that is parked cannot be corrected; usage that was corrected before cannot be discarded, and counts once it is retried.
func TestP2_ParkedUsageAndItsCorrections(t *testing.T) {
	s := newRetryFixture(t)
	tenant := newID()
	p := events.PartitionOf(tenant)
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly), grant("panics", domain.ResetMonthly))
	broken, _ := s.aggregator(poisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}})
	s.append(usageEvent(tenant, "good", "calls", 3, may), usageEvent(tenant, "bad", "panics", 10, may),
		correction(tenant, "bad1", "panics", "bad", 4).Pending, usageEvent(tenant, "other", "panics", 5, may))
	s.drain(s.validating, broken, s.lettering)
	s.append(correction(tenant, "bad2", "panics", "bad", 6).Pending, correction(tenant, "good1", "calls", "good", 2).Pending)
	s.drain(s.validating, broken, s.lettering)
	letters := s.lettersByEvent(tenant, events.StatusFailed)
	if c := s.counts(p); c.Parked != 3 || c.Rejected != 1 || len(letters) != 4 {
		t.Fatalf("%+v, dead letters %v", c, letters)
	}
	refusedWith(t, "dead_letter_has_corrections", s.discard(tenant, letters["bad"]))
	refusedWith(t, "dead_letter_has_corrections", s.discard(tenant, letters["bad1"]))
	s.append(correction(tenant, "other1", "panics", "other", -1).Pending) // not judged yet
	refusedWith(t, "dead_letter_has_corrections", s.discard(tenant, letters["other"]))
	s.drain(s.validating, s.lettering)
	s.must(s.discard(tenant, letters["other"])) // its retraction is rejected, because it was parked
	for _, name := range []string{"bad", "bad1"} {
		s.must(s.retryNow(tenant, letters[name]))
	}
	s.drain(s.executing)
	s.settle()
	s.must(s.retryNow(tenant, s.lettersByEvent(tenant, events.StatusFailed)["bad2"]))
	s.drain(s.executing)
	s.settle()
	s.checkIdentity()
	for feature, want := range map[string]aggregate{"calls": {Amount: "2", Count: 1}, "panics": {Amount: "6", Count: 1}} {
		if got := s.aggregates()[aggregateKey{tenant, feature, "2026-05"}]; got.Amount != want.Amount || got.Count != want.Count {
			t.Errorf("%s: %+v, want %+v", feature, got, want)
		}
	}
	y := newRebuildFixtureOf(s.pipelineFixture)
	for _, projection := range []string{projections.ProjectionUsage, projections.ProjectionEntitlements, projections.ProjectionSeries} {
		r := y.start(commands.StartRebuild{Projection: projection})
		y.whileRebuilding(func() { y.ready(r) }, y.rebuilder(10))
		if projection == projections.ProjectionUsage {
			if err := y.sameRows(r, 1); err != nil {
				t.Error(err)
			}
		}
	}
}

// The events behind a corrected figure add up to it, at each position.
func TestP12_ExplainListsCorrections(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "a", "calls", 10, may), correction(tenant, "a1", "calls", "a", 7).Pending,
		correction(tenant, "a2", "calls", "a", 12).Pending, correction(tenant, "a3", "calls", "a", -1).Pending)
	s.settle()
	q := usage.ExplainQuery{TenantID: tenant, Feature: "calls", PeriodKey: "2026-05", Limit: 100}
	e, err := s.reads.Explain(t.Context(), operator, q)
	s.must(err)
	if !e.Adds || e.Total != "0" || e.EventCount != 0 || len(e.Data) != 4 {
		t.Fatalf("%+v", e)
	}
	for i, want := range []struct{ amount, count int64 }{{10, 1}, {-3, 0}, {5, 0}, {-12, -1}} {
		if got := e.Data[i]; got.Amount != want.amount || got.Count != want.count || !got.Timestamp.Equal(may) {
			t.Errorf("entry %d: %+v, want %+v", i, got, want)
		}
		q.AsOf = &usage.AsOf{Position: &at[i]}
		past, err := s.reads.Explain(t.Context(), operator, q)
		s.must(err)
		if total := []string{"10", "7", "12", "0"}[i]; !past.Adds || past.Total.String() != total || len(past.Data) != i+1 {
			t.Errorf("as of %s: %+v, want %s", at[i], past, total)
		}
	}
	list, err := s.reads.UsageEvents(t.Context(), operator, audit.EventQuery{TenantID: tenant, Limit: 100})
	s.must(err)
	if len(list.Data) != 4 || list.Data[0].Type != events.TypeRetraction || list.Data[1].Type != events.TypeCorrection || list.Data[1].Amount != 12 {
		t.Errorf("the list: %+v", list.Data)
	}
}
