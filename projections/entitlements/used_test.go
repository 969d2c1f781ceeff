package entitlements_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
)

// usedAndCounted returns the usage of a tenant that checks see in a generation, and the sum of its live figures.
func usedAndCounted(s *Pipeline, tenant uuid.UUID, generation int) (used, counted int64) {
	s.Helper()
	s.Must(s.Pool.QueryRow(context.Background(), `SELECT
		(SELECT coalesce(sum(used), 0)::bigint FROM entitlement_usage WHERE generation = $2 AND tenant_id = $1),
		(SELECT coalesce(sum(amount), 0)::bigint FROM usage_aggregates WHERE generation = live_generation('usage_aggregates', tenant_id,
		period_key) AND tenant_id = $1)`,
		tenant, generation).Scan(&used, &counted))
	return used, counted
}

// accountUsed returns the amount that the accounts of a tenant have used.
func accountUsed(s *Pipeline, tenant uuid.UUID) (used int64) {
	s.Helper()
	s.Must(s.Pool.QueryRow(context.Background(), `SELECT coalesce(sum(used), 0)::bigint FROM quota_accounts WHERE tenant_id = $1`, tenant).
		Scan(&used))
	return used
}

// P7: admitted usage counts in its account and in checks when it is recorded, once, and stays used if its verdict is
// discarded: it was granted. The figures count its verdict.
func TestP7_AdmittedUsageIsUsedWhenItIsRecorded(t *testing.T) {
	s := NewLetters(t)
	broken, _ := s.BrokenAggregator()
	tenant := NewID()
	s.Subscribe(tenant, May, Account("calls", domain.ResetMonthly), Account("panics", domain.ResetMonthly))
	s.Append(Admitted(tenant, "good", "calls", 3, May), Admitted(tenant, "bad", "panics", 5, May), Usage(tenant, "sent", "calls", 7, May))
	expect := func(when string, wantUsed, wantCounted, wantAccount int64) {
		t.Helper()
		if used, counted := usedAndCounted(s.Pipeline, tenant, 1); used != wantUsed || counted != wantCounted ||
			accountUsed(s.Pipeline, tenant) != wantAccount {
			t.Errorf("%s: %d used, %d counted, %d in the account; want %d, %d, %d", when, used, counted, accountUsed(s.Pipeline, tenant),
				wantUsed, wantCounted, wantAccount)
		}
	}
	s.Drain(s.Entitling)
	expect("before the verdicts", 8, 0, 8)
	s.Drain(s.Validating, broken, s.Lettering, s.Entitling)
	expect("with a parked verdict", 15, 10, 15)
	for _, d := range s.Failed(tenant) {
		s.Must(s.Discard(tenant, d.ID))
	}
	s.Drain(s.Lettering, s.Entitling)
	expect("after its discard", 15, 10, 15)
	var own int
	s.Must(s.Pool.QueryRow(t.Context(), `SELECT count(DISTINCT subscription_id) FROM usage_aggregates WHERE tenant_id = $1
		AND feature = 'calls'`, tenant).Scan(&own))
	if own != 2 {
		t.Errorf("the figures are of %d subscriptions: the verdict on admitted usage is not its admission", own)
	}
}

// P7: admitted usage that was withheld from its topic, and retried, has its admission as verdict, and counts once.
func TestP7_WithheldAdmittedUsageIsRetriedAsItWasGranted(t *testing.T) {
	s := NewLetters(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Account("calls", domain.ResetMonthly))
	s.Append(Admitted(tenant, "withheld", "calls", 5, May))
	p := events.PartitionOf(tenant)
	list := s.Read(events.TopicUsageRaw, p, s.Checkpoint(events.GroupValidator, p))
	s.Withhold(tenant, list[len(list)-1])
	s.Drain(s.Validating, s.Lettering)
	failed := s.Failed(tenant)
	if len(failed) != 1 {
		t.Fatalf("%d dead letters", len(failed))
	}
	s.Must(s.RetryNow(tenant, failed[0].ID))
	s.Drain(s.Executing, s.Validating, s.Lettering)
	s.Settle()
	if used, counted := usedAndCounted(s.Pipeline, tenant, 1); used != 5 || counted != 5 || accountUsed(s.Pipeline, tenant) != 5 {
		t.Errorf("%d used, %d counted, %d in the account instead of 5", used, counted, accountUsed(s.Pipeline, tenant))
	}
}

// withholdLast validates a tenant's usage and withholds its last verdict from the topic.
func withholdLast(s *Pipeline, tenant uuid.UUID) {
	s.Helper()
	s.Drain(s.Validating)
	p := events.PartitionOf(tenant)
	if list := s.Read(events.TopicUsageValidated, p, s.Checkpoint(events.GroupAggregator, p)); len(list) > 0 {
		if last := list[len(list)-1]; last.Subject == events.UsageValidated && !last.Withheld {
			s.Withhold(tenant, last)
		}
	}
}

// P4: once each dead letter has ended, the usage that a check sees equals the figures, whatever failed, was withheld,
// retried or discarded; live, and after a rebuild.
func TestP4_UsedEqualsTheFiguresAfterDiscards(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := NewLetters(t)
	broken, _ := s.BrokenAggregator()
	rapid.Check(t, func(rt *rapid.T) {
		tenant, n := NewID(), 0
		s.Subscribe(tenant, May, Account("calls", domain.ResetMonthly), Account("panics", domain.ResetMonthly))
		record := func(rt *rapid.T) {
			n++
			s.Append(Usage(tenant, fmt.Sprint(tenant, n), rapid.SampledFrom([]string{"calls", "panics", "unknown"}).Draw(rt, "feature"),
				rapid.Int64Range(1, 1000).Draw(rt, "amount"), May))
		}
		end := func(rt *rapid.T, with func(tenant, id uuid.UUID) error) {
			for _, d := range s.Failed(tenant) {
				if !rapid.Bool().Draw(rt, "this") {
					continue
				}
				var refused *domain.Error // the letter has changed since it was listed
				if err := with(tenant, d.ID); !errors.As(err, &refused) {
					s.Must(err)
				}
			}
			s.Drain(s.Executing, s.Validating)
		}
		steps := map[string]func(){
			"record":   func() { record(rt) },
			"withhold": func() { withholdLast(s.Pipeline, tenant) },
			"fold":     func() { s.Drain(s.Validating, broken, s.Lettering, s.Entitling) },
			"discard":  func() { end(rt, s.Discard) },
			"retry":    func() { end(rt, s.RetryNow) },
		}
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			record(rt)
			steps[rapid.SampledFrom([]string{"record", "withhold", "fold", "discard", "retry"}).Draw(rt, "step")]()
		}
		s.Drain(s.Validating, broken, s.Lettering)
		for len(s.Failed(tenant)) > 0 { // letters of a retry that fails again are FAILED again
			end(rt, s.Discard)
			s.Drain(broken, s.Lettering)
		}
		s.Settle()
		if used, counted := usedAndCounted(s.Pipeline, tenant, 1); used != counted {
			rt.Fatalf("checks see %d used, the figures are %d", used, counted)
		} else if account := accountUsed(s.Pipeline, tenant); account != used {
			rt.Fatalf("checks see %d used, the accounts have %d", used, account)
		}
	})
	y := RebuildsOf(s.Pipeline)
	r := y.Start(repair.StartRebuild{Projection: projections.ProjectionEntitlements})
	y.WhileRebuilding(func() { y.Ready(r) }, y.Rebuilder(10))
	if err := y.SameRows(r, 1); err != nil {
		t.Error(err)
	}
}

// P5: a parked verdict is used until its dead letter is discarded, and a failure of another read model does not change the figures.
func TestP5_DiscardedVerdictsAreNotUsed(t *testing.T) {
	s := NewLetters(t)
	broken, _ := s.BrokenAggregator()
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly))
	s.Append(Usage(tenant, "good", "calls", 3, May), Usage(tenant, "bad", "panics", 5, May))
	expect := func(when string, wantUsed, wantCounted int64) {
		t.Helper()
		if used, counted := usedAndCounted(s.Pipeline, tenant, 1); used != wantUsed || counted != wantCounted {
			t.Errorf("%s: %d used and %d counted, want %d and %d", when, used, counted, wantUsed, wantCounted)
		}
	}
	s.Drain(s.Validating, broken, s.Lettering, s.Entitling)
	expect("parked", 8, 3)
	s.Must(s.Discard(tenant, s.Failed(tenant)[0].ID))
	s.Settle()
	expect("discarded", 3, 3)
	failOfAnotherModel(s, tenant, "calls")
	expect("failed in another read model", 3, 3)
	s.Append(Usage(tenant, "retried", "panics", 11, May))
	s.Drain(s.Validating, broken, s.Lettering)
	s.Must(s.RetryNow(tenant, s.Failed(tenant)[0].ID))
	s.Drain(s.Executing)
	s.Settle()
	expect("resolved", 14, 14)
}

// failOfAnotherModel records that another consumer could not fold the tenant's first verdict: its dead letter is discarded at once.
func failOfAnotherModel(s *Letters, tenant uuid.UUID, feature string) {
	s.Helper()
	p := events.PartitionOf(tenant)
	v := s.Read(events.TopicUsageValidated, p, 0)[0]
	if got := Decode[events.Validated](s.Database, v); got.Feature != feature {
		s.Fatalf("the first verdict is %+v", got)
	}
	const by = "meterplex-other-reads"
	id := NewID()
	s.Append(projections.FollowUp(&v, id, events.AggregationFailed, events.Failed{SourcePosition: v.Position.Number,
		SourceEventID: v.EventID, Topic: "usage.validated",
		Stage: events.StageAggregation, Code: "fold_failed", DeadLetterID: id, Payload: v.Payload}, by),
		projections.Closing(&v, NewID(), events.Closed{DeadLetterID: id, Status: events.StatusDiscarded, Reason: "a rebuild repairs it"},
			by))
	s.Settle()
}

// P11: a discarded verdict that no fold can read stops no consumer, and is not subtracted.
func TestP11_DamagedVerdictsAreDiscarded(t *testing.T) {
	s := NewLetters(t)
	s.Payloads.Allow() // damaged
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	s.Append(Usage(tenant, "good", "calls", 3, May))
	s.Drain(s.Validating)
	for _, payload := range []string{
		`{"rawPosition":1,"eventId":"no amount"}`,
		`{"rawPosition":1,"eventId":"x","feature":"calls","amount":2,"count":1,"timestamp":"in May","validatedSubscriptionId":"` + NewID().
			String() + `","featureType":"QUOTA","periodKey":"2026-05"}`,
	} {
		s.Append(Plain(tenant, events.UsageValidated, events.Counts{}, json.RawMessage(payload)))
	}
	s.Drain(s.Aggregating, s.Lettering)
	failed := s.Failed(tenant)
	if len(failed) != 2 {
		t.Fatalf("%d verdicts are parked, want 2", len(failed))
	}
	for _, d := range failed {
		s.Must(s.Discard(tenant, d.ID))
	}
	s.Drain(s.Lettering, s.Entitling)
	if used, counted := usedAndCounted(s.Pipeline, tenant, 1); used != 3 || counted != 3 {
		t.Errorf("%d used and %d counted, want 3", used, counted)
	}
}
