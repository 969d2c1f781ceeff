package projections_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
)

// usedAndCounted returns the usage of a tenant that checks see in a generation, and the sum of its live figures.
func (s *pipelineFixture) usedAndCounted(tenant uuid.UUID, generation int) (used, counted int64) {
	s.Helper()
	s.must(s.pool.QueryRow(context.Background(), `SELECT
		(SELECT coalesce(sum(used), 0)::bigint FROM entitlement_usage WHERE generation = $2 AND tenant_id = $1),
		(SELECT coalesce(sum(amount), 0)::bigint FROM usage_aggregates WHERE generation = live_generation('usage_aggregates', tenant_id, period_key) AND tenant_id = $1)`,
		tenant, generation).Scan(&used, &counted))
	return used, counted
}

// account returns the amount that the accounts of a tenant have used.
func (s *pipelineFixture) account(tenant uuid.UUID) (used int64) {
	s.Helper()
	s.must(s.pool.QueryRow(context.Background(), `SELECT coalesce(sum(used), 0)::bigint FROM quota_accounts WHERE tenant_id = $1`, tenant).Scan(&used))
	return used
}

// P7: admitted usage counts in its account and in checks when it is recorded, once, and stays used if its verdict is
// discarded: it was granted. The figures count its verdict.
func TestP7_AdmittedUsageIsUsedWhenItIsRecorded(t *testing.T) {
	s := newRetryFixture(t)
	broken, _ := s.aggregator(poisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}})
	tenant := newID()
	s.subscribe(tenant, may, account("calls", domain.ResetMonthly), account("panics", domain.ResetMonthly))
	s.append(admittedEvent(tenant, "good", "calls", 3, may), admittedEvent(tenant, "bad", "panics", 5, may), usageEvent(tenant, "sent", "calls", 7, may))
	expect := func(when string, wantUsed, wantCounted, wantAccount int64) {
		t.Helper()
		if used, counted := s.usedAndCounted(tenant, 1); used != wantUsed || counted != wantCounted || s.account(tenant) != wantAccount {
			t.Errorf("%s: %d used, %d counted, %d in the account; want %d, %d, %d", when, used, counted, s.account(tenant), wantUsed, wantCounted, wantAccount)
		}
	}
	s.drain(s.entitling)
	expect("before the verdicts", 8, 0, 8)
	s.drain(s.validating, broken, s.lettering, s.entitling)
	expect("with a parked verdict", 15, 10, 15)
	for _, d := range s.failed(tenant) {
		s.must(s.discard(tenant, d.ID))
	}
	s.drain(s.lettering, s.entitling)
	expect("after its discard", 15, 10, 15)
	var own int
	s.must(s.pool.QueryRow(t.Context(), `SELECT count(DISTINCT subscription_id) FROM usage_aggregates WHERE tenant_id = $1 AND feature = 'calls'`, tenant).Scan(&own))
	if own != 2 {
		t.Errorf("the figures are of %d subscriptions: the verdict on admitted usage is not its admission", own)
	}
}

// P7: admitted usage that was withheld from its topic, and retried, has its admission as verdict, and counts once.
func TestP7_WithheldAdmittedUsageIsRetriedAsItWasGranted(t *testing.T) {
	s := newRetryFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, account("calls", domain.ResetMonthly))
	s.append(admittedEvent(tenant, "withheld", "calls", 5, may))
	p := events.PartitionOf(tenant)
	list := s.read(events.TopicUsageRaw, p, s.checkpoint(events.GroupValidator, p))
	s.withhold(tenant, list[len(list)-1])
	s.drain(s.validating, s.lettering)
	failed := s.failed(tenant)
	if len(failed) != 1 {
		t.Fatalf("%d dead letters", len(failed))
	}
	s.must(s.retryNow(tenant, failed[0].ID))
	s.drain(s.executing, s.validating, s.lettering)
	s.settle()
	if used, counted := s.usedAndCounted(tenant, 1); used != 5 || counted != 5 || s.account(tenant) != 5 {
		t.Errorf("%d used, %d counted, %d in the account instead of 5", used, counted, s.account(tenant))
	}
}

// withholdLast validates a tenant's usage and withholds its last verdict from the topic.
func (s *pipelineFixture) withholdLast(tenant uuid.UUID) {
	s.Helper()
	s.drain(s.validating)
	p := events.PartitionOf(tenant)
	if list := s.read(events.TopicUsageValidated, p, s.checkpoint(events.GroupAggregator, p)); len(list) > 0 {
		if last := list[len(list)-1]; last.Subject == events.UsageValidated && !last.Withheld {
			s.withhold(tenant, last)
		}
	}
}

// P4: once each dead letter has ended, the usage that a check sees equals the figures, whatever failed, was withheld,
// retried or discarded; live, and after a rebuild.
func TestP4_UsedEqualsTheFiguresAfterDiscards(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := newRetryFixture(t)
	broken, _ := s.aggregator(poisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}})
	rapid.Check(t, func(rt *rapid.T) {
		tenant, n := newID(), 0
		s.subscribe(tenant, may, account("calls", domain.ResetMonthly), account("panics", domain.ResetMonthly))
		record := func(rt *rapid.T) {
			n++
			s.append(usageEvent(tenant, fmt.Sprint(tenant, n), rapid.SampledFrom([]string{"calls", "panics", "unknown"}).Draw(rt, "feature"), rapid.Int64Range(1, 1000).Draw(rt, "amount"), may))
		}
		end := func(rt *rapid.T, with func(tenant, id uuid.UUID) error) {
			for _, d := range s.failed(tenant) {
				if !rapid.Bool().Draw(rt, "this") {
					continue
				}
				var refused *domain.Error // the letter has changed since it was listed
				if err := with(tenant, d.ID); !errors.As(err, &refused) {
					s.must(err)
				}
			}
			s.drain(s.executing, s.validating)
		}
		steps := map[string]func(){
			"record":   func() { record(rt) },
			"withhold": func() { s.withholdLast(tenant) },
			"fold":     func() { s.drain(s.validating, broken, s.lettering, s.entitling) },
			"discard":  func() { end(rt, s.discard) },
			"retry":    func() { end(rt, s.retryNow) },
		}
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			record(rt)
			steps[rapid.SampledFrom([]string{"record", "withhold", "fold", "discard", "retry"}).Draw(rt, "step")]()
		}
		s.drain(s.validating, broken, s.lettering)
		for len(s.failed(tenant)) > 0 { // letters of a retry that fails again are FAILED again
			end(rt, s.discard)
			s.drain(broken, s.lettering)
		}
		s.settle()
		if used, counted := s.usedAndCounted(tenant, 1); used != counted {
			rt.Fatalf("checks see %d used, the figures are %d", used, counted)
		} else if account := s.account(tenant); account != used {
			rt.Fatalf("checks see %d used, the accounts have %d", used, account)
		}
	})
	y := newRebuildFixtureOf(s.pipelineFixture)
	r := y.start(commands.StartRebuild{Projection: projections.ProjectionEntitlements})
	y.whileRebuilding(func() { y.ready(r) }, y.rebuilder(10))
	if err := y.sameRows(r, 1); err != nil {
		t.Error(err)
	}
}

// onlyV1 has the entitlement fold of releases that kept discarded verdicts.
func onlyV1() models.Folds {
	f := models.DefaultFolds()
	f.Entitlements = projections.Versions[entitlements.Fold]{{Name: entitlements.V1, Fold: entitlements.FoldV1}}
	return f
}

// P5: a database of an earlier release keeps its version until a rebuild by the new one is promoted. A parked verdict
// is used until its dead letter is discarded, and a failure of another read model does not change the figures.
func TestP5_DiscardedVerdictsAreUsedByTheFirstVersionOnly(t *testing.T) {
	s := newRetryFixture(t)
	y := newRebuildFixtureOf(s.pipelineFixture)
	s.must(second(s.pool.Exec(t.Context(), `UPDATE projection_generations SET fold_version = $1 WHERE projection = $2`, entitlements.V1, projections.ProjectionEntitlements)))
	y.folds = onlyV1()
	y.deploy()
	broken, _ := s.aggregator(poisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: newID}})
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly), grant("panics", domain.ResetMonthly))
	s.append(usageEvent(tenant, "good", "calls", 3, may), usageEvent(tenant, "bad", "panics", 5, may))
	expect := func(when string, generation int, wantUsed, wantCounted int64) {
		t.Helper()
		if used, counted := s.usedAndCounted(tenant, generation); used != wantUsed || counted != wantCounted {
			t.Errorf("%s: %d used and %d counted, want %d and %d", when, used, counted, wantUsed, wantCounted)
		}
	}
	s.drain(s.validating, broken, s.lettering, s.entitling)
	expect("while it is parked", 1, 8, 3)
	s.must(s.discard(tenant, s.failed(tenant)[0].ID))
	s.settle()
	expect("by the first version", 1, 8, 3)
	y.folds = models.DefaultFolds()
	y.deploy()
	s.settle()
	expect("by the first version in a new release", 1, 8, 3)
	r := y.rebuilt(commands.StartRebuild{Projection: projections.ProjectionEntitlements})
	s.must(y.promote(r))
	expect("rebuilt", r.Generation, 3, 3)
	s.append(usageEvent(tenant, "bad too", "panics", 7, may))
	s.drain(s.validating, broken, s.lettering, s.entitling)
	expect("parked", r.Generation, 10, 3)
	s.must(s.discard(tenant, s.failed(tenant)[0].ID))
	s.settle()
	expect("discarded", r.Generation, 3, 3)
	expect("kept", 1, 15, 3)
	s.failOfAnotherModel(tenant, "calls")
	expect("failed in another read model", r.Generation, 3, 3)
	s.append(usageEvent(tenant, "retried", "panics", 11, may))
	s.drain(s.validating, broken, s.lettering)
	s.must(s.retryNow(tenant, s.failed(tenant)[0].ID))
	s.drain(s.executing)
	s.settle()
	expect("resolved", r.Generation, 14, 14)
}

// failOfAnotherModel records that another consumer could not fold the tenant's first verdict: its dead letter is discarded at once.
func (s *retryFixture) failOfAnotherModel(tenant uuid.UUID, feature string) {
	s.Helper()
	p := events.PartitionOf(tenant)
	v := s.read(events.TopicUsageValidated, p, 0)[0]
	if got := decode[events.Validated](s.logFixture, v); got.Feature != feature {
		s.Fatalf("the first verdict is %+v", got)
	}
	const by = "meterplex-other-reads"
	id := newID()
	s.append(projections.FollowUp(&v, id, events.AggregationFailed, events.Failed{SourcePosition: v.Position.Number, SourceEventID: v.EventID, Topic: "usage.validated",
		KafkaOffset: -1, Stage: events.StageAggregation, Code: "fold_failed", DeadLetterID: id, Payload: v.Payload}, by),
		projections.Closing(&v, newID(), events.Closed{DeadLetterID: id, Status: events.StatusDiscarded, Reason: "a rebuild repairs it"}, by))
	s.settle()
}

// P11: a discarded verdict that no fold can read stops no consumer, and is not subtracted.
func TestP11_DamagedVerdictsAreDiscarded(t *testing.T) {
	s := newRetryFixture(t)
	s.payloads.Allow() // damaged
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	s.append(usageEvent(tenant, "good", "calls", 3, may))
	s.drain(s.validating)
	for _, payload := range []string{
		`{"rawPosition":1,"eventId":"no amount"}`,
		`{"rawPosition":1,"eventId":"x","feature":"calls","amount":2,"count":1,"timestamp":"in May","validatedSubscriptionId":"` + newID().String() + `","featureType":"QUOTA","periodKey":"2026-05"}`,
	} {
		s.append(plainEvent(tenant, events.UsageValidated, events.Counts{}, json.RawMessage(payload)))
	}
	s.drain(s.aggregating, s.lettering)
	failed := s.failed(tenant)
	if len(failed) != 2 {
		t.Fatalf("%d verdicts are parked, want 2", len(failed))
	}
	for _, d := range failed {
		s.must(s.discard(tenant, d.ID))
	}
	s.drain(s.lettering, s.entitling)
	if used, counted := s.usedAndCounted(tenant, 1); used != 3 || counted != 3 {
		t.Errorf("%d used and %d counted, want 3", used, counted)
	}
}
