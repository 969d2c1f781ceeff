package projections_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
)

func (s *retryFixture) discard(tenant, id uuid.UUID) error {
	_, err := s.letters.Discard(context.Background(), commands.Request{By: billing}, id, tenant, "a test")
	return err
}

func (s *retryFixture) retryNow(tenant, id uuid.UUID) error {
	_, err := s.letters.RequestRetry(context.Background(), commands.Request{By: billing}, id, tenant, "a test")
	return err
}

func refusedWith(t *testing.T, code string, err error) {
	t.Helper()
	if no := (*domain.Error)(nil); !errors.As(err, &no) || no.Code != code || no.Message == "" {
		t.Errorf("%v instead of %s", err, code)
	}
}

// P3: a discarded dead letter stays rejected: no retry requested before or after,
// and no rebuild, counts its event.
func TestP3_DiscardedIsRejectedForEver(t *testing.T) {
	s := newRetryFixture(t)
	tenant := newID()
	p := events.PartitionOf(tenant)
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly), grant("panics", domain.ResetMonthly))
	s.append(usageEvent(tenant, "good", "calls", 1, may), usageEvent(tenant, "bad", "panics", 5, may), usageEvent(tenant, "none", "unknown", 1, may))
	broken, _ := s.aggregator(poisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}})
	s.drain(s.validating, broken, s.lettering)
	if c := s.counts(p); c.Parked != 1 || c.Rejected != 1 {
		t.Fatalf("%+v", c)
	}
	for _, d := range s.failed(tenant) {
		s.must(s.retryNow(tenant, d.ID)) // asked for, not executed yet
		s.must(s.discard(tenant, d.ID))
		refusedWith(t, "dead_letter_not_retryable", s.retryNow(tenant, d.ID))
		refusedWith(t, "dead_letter_not_discardable", s.discard(tenant, d.ID))
		refusedWith(t, "dead_letter_not_found", s.discard(newID(), d.ID))
	}
	for range 2 {
		if c := s.counts(p); c.Parked != 0 || c.Rejected != 2 || c.Accepted != 3 {
			t.Errorf("%+v", c)
		}
		s.checkIdentity()
		s.drain(s.executing)
		s.settle()
	}
	if bad, none := s.receipt(tenant, "bad").Status, s.receipt(tenant, "none").Status; bad != projections.UsageRejected || none != projections.UsageRejected {
		t.Errorf("receipts %s and %s", bad, none)
	}
	if len(s.failed(tenant)) != 0 || len(s.letterList(tenant, events.StatusDiscarded)) != 2 {
		t.Errorf("%+v", s.letterList(tenant, ""))
	}
	// By folds that accept the events that the live one refused.
	y := newRebuildFixtureOf(s.pipelineFixture)
	r := y.start(commands.StartRebuild{Projection: projections.ProjectionUsage})
	y.whileRebuilding(func() { y.ready(r) }, y.rebuilder(10))
	if err := y.sameRows(r, 1); err != nil {
		t.Error(err)
	}
}

// Dead letters being retried or already closed are not discarded.
func TestOnlyFailedLettersAreDiscarded(t *testing.T) {
	s := newRetryFixture(t)
	tenant := newID()
	s.append(usageEvent(tenant, "e", "calls", 1, may))
	s.settle()
	id := s.failed(tenant)[0].ID
	s.must(s.retryNow(tenant, id))
	s.drain(s.executing)
	refusedWith(t, "dead_letter_not_discardable", s.discard(tenant, id)) // RETRYING, though the projection says FAILED
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	s.settle()
	if len(s.failed(tenant)) != 1 {
		t.Errorf("the subscription came later than the retry: %+v", s.letterList(tenant, ""))
	}
	s.must(s.retryNow(tenant, id))
	s.drain(s.executing, s.validating)
	refusedWith(t, "dead_letter_not_discardable", s.discard(tenant, id)) // RESOLVED
	s.settle()
	s.checkIdentity()
	for _, reason := range []string{"", " ", "a\x00b", string(make([]byte, 501))} {
		_, err := s.letters.Discard(context.Background(), commands.Request{By: billing}, id, tenant, reason)
		refusedWith(t, "reason_invalid", err)
	}
}
