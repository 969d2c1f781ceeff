package projections_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

func TestReceiptFollowsAnEvent(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	sub := s.subscribe(tenant, may, quota("calls", 100, domain.LimitHard, domain.ResetMonthly))
	event := usageEvent(tenant, "evt/1", "calls", 5, may.Add(time.Hour))
	event.Canonical = 1
	at := s.append(event, usageEvent(tenant, "evt", "calls", 7, may))[0]
	s.append(conflict(tenant, "evt/1", at, "other"), conflict(tenant, "evt", at, "that of another event"))

	got := s.receipt(tenant, "evt/1")
	if got.Status != projections.UsagePending || got.Recorded.Position != at || got.Published != nil || got.Validated != nil || got.Aggregated != nil ||
		got.CanonicalVersion != 1 || len(got.PayloadHash) != 64 || string(got.Payload) != string(event.Payload) || got.Recorded.LogEventID != event.EventID {
		t.Fatalf("pending: %+v", got)
	}
	if len(got.Conflicts) != 1 || got.Conflicts[0].FirstPosition != at || len(s.receipt(tenant, "evt").Conflicts) != 1 {
		t.Errorf("the conflicts of two events are distinguished: %+v", got.Conflicts)
	}
	s.drain(s.validating)
	s.relayed(40)
	got = s.receipt(tenant, "evt/1")
	if got.Status != projections.UsageValidated || got.Validated.SubscriptionID != sub.ID || got.Validated.PeriodKey != "2026-05" {
		t.Errorf("validated: %+v", got)
	}
	if p := s.receipt(tenant, "evt").Published; p == nil || *p.Offset != 41 || p.Topic != "usage.raw" || p.At == nil || p.Expired {
		t.Errorf("the second record of the run that begins at offset 40: %+v", p)
	}
	s.settle()
	got = s.receipt(tenant, "evt/1")
	if got.Status != projections.UsageAggregated || got.Aggregated.SubscriptionID != sub.ID || got.AsOfPosition.Number < at.Number {
		t.Errorf("aggregated: %+v", got)
	}
	if len(got.DeadLetters) != 0 {
		t.Errorf("a conflict is no dead letter of the event that stays: %+v", got.DeadLetters)
	}
	for _, unknown := range []string{"evt_2", "evt/", "", "e\x00", "\xff"} {
		if _, err := s.reads.Receipt(t.Context(), operator, tenant, unknown, query.Wait{}); !errors.Is(err, query.ErrNotFound) {
			t.Errorf("%q: %v", unknown, err)
		}
	}
}

func TestReceiptOfARejectedAndRetriedEvent(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	at := s.append(usageEvent(tenant, "e", "calls", 5, may))[0]
	s.settle()
	got := s.receipt(tenant, "e")
	if got.Status != projections.UsageRejected || got.Rejected == nil || got.Rejected.Code != "no_active_subscription" || len(got.DeadLetters) != 1 {
		t.Fatalf("rejected: %+v", got)
	}
	letter := got.Rejected.DeadLetterID
	s.retry(tenant, letter, at.Number, 1)
	s.drain(s.lettering)
	if got := s.receipt(tenant, "e"); got.Status != projections.UsagePending || len(got.Retries) != 1 || got.Retries[0].Attempt != 1 {
		t.Errorf("retried: %+v", got)
	}
	s.settle()
	if got := s.receipt(tenant, "e"); got.Status != projections.UsageRejected || got.Rejected.Attempt != 1 || got.DeadLetters[0].Status != events.StatusFailed {
		t.Errorf("rejected again: %+v", got)
	}
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	s.retry(tenant, letter, at.Number, 2)
	s.settle()
	if got := s.receipt(tenant, "e"); got.Status != projections.UsageAggregated || len(got.Retries) != 2 || got.DeadLetters[0].Status != events.StatusResolved {
		t.Errorf("counted at last: %+v", got)
	}
}

// Two tenants of a partition may name their events alike: an operator's receipt is of the tenant that is asked for,
// in each of its steps.
func TestP9_ReceiptsForOperatorsAreOfOneTenant(t *testing.T) {
	s := newPipelineFixture(t)
	one, other := tenantIn(9), tenantIn(9)
	for i, tenant := range []uuid.UUID{one, other} {
		s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
		at := s.append(usageEvent(tenant, "counted", "calls", int64(5+i), may), usageEvent(tenant, "refused", "unknown", int64(5+i), may),
			usageEvent(tenant, fmt.Sprint("own ", i), "calls", 1, may))
		s.append(conflict(tenant, "counted", at[0], fmt.Sprint("other ", i)))
		s.settle()
		s.retry(tenant, s.receipt(tenant, "refused").Rejected.DeadLetterID, at[1].Number, 1)
		s.settle()
	}
	for _, tenant := range []uuid.UUID{one, other} {
		for _, id := range []string{"counted", "refused"} {
			got, err := s.reads.Receipt(t.Context(), operator, tenant, id, query.Wait{})
			s.must(err)
			if want := s.receipt(tenant, id); !reflect.DeepEqual(got, want) {
				t.Errorf("an operator's receipt of %s is %+v, the tenant's own %+v", id, got, want)
			}
			if len(got.Conflicts)+len(got.Retries) != 1 || len(got.DeadLetters) != len(got.Retries) {
				t.Errorf("%s has %d conflicts, %d retries and %d dead letters, want one conflict, or one retry and one letter", id, len(got.Conflicts), len(got.Retries), len(got.DeadLetters))
			}
		}
	}
	_, err := s.reads.Receipt(t.Context(), operator, other, "own 0", query.Wait{})
	refusedAs(t, query.ErrNotFound, err)
}

// retry appends the event that the command router appends for a rejection.
func (s *pipelineFixture) retry(tenant, letter uuid.UUID, raw int64, attempt int) {
	s.Helper()
	var payload json.RawMessage
	s.must(s.pool.QueryRow(context.Background(), `SELECT l.payload FROM event_log_rows l WHERE partition = $1 AND position = $2`, events.PartitionOf(tenant), raw).Scan(&payload))
	again := plainEvent(tenant, events.UsageRetried, events.Counts{Accepted: 1}, events.Retried{RawPosition: raw, DeadLetterID: letter, Attempt: attempt, Usage: payload})
	again.DedupeKey = events.KeyRetry(letter, attempt)
	s.append(again, plainEvent(tenant, events.DeadLetterRetried, events.Counts{}, events.RetryDone{DeadLetterID: letter, Attempt: attempt}))
}

// The checkpoint passes an event that fails to fold: the event must not look counted,
// even before its dead letter is folded.
func TestParkedEventsAreNotShownAsCounted(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly), grant("panics", domain.ResetMonthly))
	s.append(usageEvent(tenant, "good", "calls", 1, may), usageEvent(tenant, "bad", "panics", 1, may))
	broken, _ := s.aggregator(poisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}})
	s.drain(s.validating, broken)
	for range 2 {
		if good, bad := s.receipt(tenant, "good"), s.receipt(tenant, "bad"); good.Status != projections.UsageAggregated || bad.Status != projections.UsageDeadLettered {
			t.Errorf("good is %s, bad is %s", good.Status, bad.Status)
		}
		s.settle()
	}
	page, err := s.reads.UsageEvents(t.Context(), tenantViewer(tenant), audit.EventQuery{TenantID: tenant, Status: projections.UsageDeadLettered, Limit: 10})
	if err != nil || len(page.Data) != 1 || page.Data[0].EventID != "bad" {
		t.Errorf("%+v %v", page, err)
	}
}

// An entitlement fold that fails is beside the event's way: the event is counted.
func TestFoldFailuresOfAReadModelAreCounted(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("panics", domain.ResetMonthly))
	s.append(usageEvent(tenant, "e", "panics", 1, may))
	poisonous := entitlements.Consumer(models.DefaultFolds().Entitlements, newID)
	poisonous.Handler = poisonedHandler{poisonous.Handler}
	broken, _ := s.runner(poisonous)
	s.drain(s.validating, s.aggregating, broken)
	for range 2 {
		if got := s.receipt(tenant, "e"); got.Status != projections.UsageAggregated {
			t.Errorf("%s %+v", got.Status, got.DeadLetters)
		}
		s.drain(s.lettering)
	}
}

func TestUsageEventsPageThroughTheLog(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	neighbour := tenantIn(events.PartitionOf(tenant))
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	var want []string
	for i := range 30 {
		feature := []string{"calls", "unknown", "calls"}[i%3]
		s.append(usageEvent(tenant, fmt.Sprint("e", i), feature, int64(i+1), may.Add(time.Duration(i)*time.Hour)), usageEvent(neighbour, fmt.Sprint("n", i), "calls", 1, may))
		want = append([]string{fmt.Sprint("e", i)}, want...)
	}
	s.settle()
	all := func(q audit.EventQuery) (ids []string) {
		q.TenantID, q.Limit = tenant, 7
		for {
			page, err := s.reads.UsageEvents(t.Context(), tenantViewer(tenant), q)
			s.must(err)
			for _, row := range page.Data {
				ids = append(ids, row.EventID)
				if rejected := row.Feature == "unknown"; rejected != (row.Status == projections.UsageRejected) || rejected != (row.Code == "feature_not_found") {
					t.Errorf("%+v", row)
				}
			}
			if q.After = page.Next; q.After == "" {
				return ids
			}
		}
	}
	if got := all(audit.EventQuery{}); !reflect.DeepEqual(got, want) {
		t.Errorf("newest first: %v", got)
	}
	if got := all(audit.EventQuery{Status: projections.UsageRejected}); len(got) != 10 || got[0] != "e28" {
		t.Errorf("rejected: %v", got)
	}
	if got := all(audit.EventQuery{Feature: "calls"}); len(got) != 20 {
		t.Errorf("of a feature: %v", got)
	}
	from, to := may.Add(3*time.Hour), may.Add(6*time.Hour)
	if got := all(audit.EventQuery{From: &from, To: &to}); !reflect.DeepEqual(got, []string{"e5", "e4", "e3"}) {
		t.Errorf("of a time, half open: %v", got)
	}
	if _, err := s.reads.UsageEvents(t.Context(), operator, audit.EventQuery{TenantID: tenant, Limit: 1, After: "x"}); !errors.Is(err, query.ErrCursorInvalid) {
		t.Errorf("a forged cursor: %v", err)
	}
}

func TestAggregatesAreListedNewestFirst(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("monthly", domain.ResetMonthly), grant("annual", domain.ResetAnnually), grant("ever", domain.ResetNever))
	for _, u := range []struct {
		feature string
		month   int
	}{{"monthly", 0}, {"ever", 0}, {"annual", 0}, {"monthly", 1}, {"monthly", -4}, {"monthly", 1}} {
		s.append(usageEvent(tenant, newID().String(), u.feature, 1<<53-1, may.AddDate(0, u.month, 3)))
	}
	s.settle()
	q := usage.AggregateQuery{TenantID: tenant, Limit: 2}
	var got []string
	for {
		page, err := s.reads.Aggregates(t.Context(), tenantViewer(tenant), q)
		s.must(err)
		for _, a := range page.Data {
			got = append(got, a.PeriodKey+" "+a.Feature+" "+a.Amount.String())
			if lifetime := a.PeriodKey == domain.PeriodLifetime; lifetime != (a.PeriodStart == nil) || lifetime != (a.PeriodEnd == nil) {
				t.Errorf("%+v", a)
			}
		}
		if page.AsOf == nil || page.AsOf.Number < 12 {
			t.Errorf("as of %v", page.AsOf)
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	want := []string{"2026-06 monthly 18014398509481982", "2026-05 monthly 9007199254740991", "2026 annual 9007199254740991",
		"2026-01 monthly 9007199254740991", "lifetime ever 9007199254740991"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	page, err := s.reads.Aggregates(t.Context(), operator, usage.AggregateQuery{TenantID: tenant, Feature: "monthly", PeriodKey: "2026-05", Limit: 9})
	if err != nil || len(page.Data) != 1 || page.Next != "" {
		t.Errorf("%+v %v", page, err)
	}
	for _, forged := range []string{"x", "1|2|3", "7|2026-05|monthly|" + tenant.String(), "1|2026-05|\x00|" + tenant.String(), "99999999999|2026|a|" + tenant.String()} {
		if _, err := s.reads.Aggregates(t.Context(), operator, usage.AggregateQuery{TenantID: tenant, Limit: 1, After: forged}); !errors.Is(err, query.ErrCursorInvalid) {
			t.Errorf("%q: %v", forged, err)
		}
	}
}

func TestConflictsAreListed(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	first := s.append(usageEvent(tenant, "b", "calls", 1, may))[0]
	for i := range 5 {
		s.append(conflict(tenant, []string{"b", "a/x", "c"}[i%3], first, fmt.Sprint(i)))
	}
	var got []string
	for after := ""; ; {
		page, err := s.reads.Conflicts(t.Context(), tenantViewer(tenant), tenant, 2, after, query.Wait{})
		s.must(err)
		for _, c := range page.Data {
			got = append(got, c.EventID)
			if c.FirstPosition != first || len(c.FirstHash) != 64 || len(c.ConflictHash) != 64 || c.At.IsZero() {
				t.Errorf("%+v", c)
			}
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if want := []string{"a/x", "a/x", "b", "b", "c"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
