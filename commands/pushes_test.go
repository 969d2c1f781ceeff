package commands

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

func only(t *testing.T, tx *pushTx) domain.Push {
	t.Helper()
	if len(tx.pushes) != 1 {
		t.Fatalf("%d pushes: %+v", len(tx.pushes), tx.pushes)
	}
	return tx.sorted()[0]
}

func TestP8_AClosedPeriodIsPushedOnce(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	tx.billable = map[string]int64{"calls": 5, "tokens": 7, "nothing": 0}
	tx.again = true
	for range 2 { // the results of the first run may be lost
		if got := runSteps(t, c, pushSaga("close/2026-05/1")); got.End != domain.SagaCompleted {
			t.Errorf("%+v", got)
		}
	}
	if len(tx.pushes) != 2 || p.calls != 2 || p.sum("calls") != 5 || p.sum("tokens") != 7 {
		t.Errorf("%d pushes in %d calls: %v", len(tx.pushes), p.calls, p.totals)
	}
	if tx.ends(events.PushDelivered) != 2 || tx.ends(events.PushFailed) != 0 {
		t.Errorf("recorded %+v", tx.appended)
	}
	for i := range tx.appended {
		got := payload[events.Push](t, &tx.appended[i])
		push := tx.pushes[got.PushID]
		if got.Key != push.Key || got.Identifier != push.Identifier || got.Amount != push.Amount.String() || got.Attempt != 1 || got.Resolution != "" ||
			tx.appended[i].DedupeKey != events.KeyPush(push.ID, "delivered") {
			t.Errorf("recorded %+v of %+v", got, push)
		}
		if of := closeOfPush(push.Closing()); tx.appended[i].CorrelationID != of.Trace || tx.appended[i].CausationID != of.EventID {
			t.Errorf("%s is delivered in the trace %s by %s, and its period was closed by %v", push.Key, tx.appended[i].CorrelationID, tx.appended[i].CausationID, of)
		}
	}
}

// A later snapshot and an approved adjustment push the difference to everything that was pushed before, also a negative one.
func TestP8_OnlyTheDifferenceIsPushed(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	tx.billable["calls"] = 5
	runSteps(t, c, pushSaga("close/2026-05/1"))
	tx.billable["calls"], tx.adjusted["calls"] = 3, -2
	runSteps(t, c, pushSaga("adjust/2026-05/1/77"))
	runSteps(t, c, pushSaga("adjust/2026-05/1/77"))
	h := tx.changes[activeTenant]
	h.Changes = append(h.Changes, domain.PeriodChange{Position: 910, PeriodKey: "2026-05", Snapshot: 1, Change: reopened})
	tx.changes[activeTenant] = h
	tx.billable["calls"] = 10
	runSteps(t, c, pushSaga("adjust/2026-05/1/78")) // nothing is due of an open period
	if p.sum("calls") != 3 || len(tx.pushes) != 2 {
		t.Fatalf("%d pushes, %v", len(tx.pushes), p.totals)
	}
	h.Changes = append(h.Changes, domain.PeriodChange{Position: 911, PeriodKey: "2026-05", Snapshot: 2, Change: requested},
		domain.PeriodChange{Position: 912, PeriodKey: "2026-05", Snapshot: 2, Change: closed})
	tx.changes[activeTenant] = h
	tx.adjusted["calls"] = 0
	runSteps(t, c, pushSaga("close/2026-05/2"))
	var keys []string
	for _, push := range tx.sorted() {
		keys = append(keys, strings.TrimPrefix(push.Key, activeTenant.String())+" "+push.Amount.String())
	}
	if want := []string{":calls:2026-05:1 5", ":calls:2026-05:1:a1 -2", ":calls:2026-05:2 7"}; !slices.Equal(keys, want) || p.sum("calls") != 10 {
		t.Errorf("%q, %v", keys, p.totals)
	}
}

// What is on its way, or failed, is not due again.
func TestP8_AnOpenPushIsNotDueAgain(t *testing.T) {
	for _, outcome := range []domain.PushOutcome{domain.PushUnknown, domain.PushLater, domain.PushRefused} {
		c, tx, p := newPushes(t, requested, closed)
		p.answer = func(int) (bool, domain.PushResult) { return false, domain.PushResult{Outcome: outcome} }
		tx.billable["calls"] = 5
		runSteps(t, c, pushSaga("close/2026-05/1"))
		tx.billable["calls"], tx.adjusted["calls"] = 6, 1
		runSteps(t, c, pushSaga("adjust/2026-05/1/77"))
		if all := tx.sorted(); len(all) != 2 || all[0].Amount.Int64() != 5 || all[1].Amount.Int64() != 1 {
			t.Errorf("%s: %+v", outcome, all)
		}
	}
}

// Answers that are lost after and before the provider counted, refusals and overload: nothing is counted twice, and nothing is missing.
func TestP8_LostAnswersCountOnce(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	tx.billable["calls"] = 5
	p.answer = func(call int) (bool, domain.PushResult) {
		return call != 2 && call != 3, domain.PushResult{Outcome: []domain.PushOutcome{domain.PushUnknown, domain.PushUnknown, domain.PushLater, domain.PushDelivered}[min(call, 4)-1]}
	}
	saga := pushSaga("close/2026-05/1")
	for i := range 4 {
		got := runSteps(t, c, saga)
		if last := i == 3; last != (got.End == domain.SagaCompleted) || !last && got.Wait == 0 {
			t.Fatalf("run %d: %+v", i, got)
		}
		if runSteps(t, c, saga); p.calls != i+1 {
			t.Fatalf("sent again before its time: %d calls", p.calls)
		}
		tx.time = tx.time.Add(time.Hour)
	}
	if push := only(t, tx); push.State != domain.PushStateDelivered || push.Attempts != 4 || p.sum("calls") != 5 || tx.ends(events.PushDelivered) != 1 {
		t.Errorf("%+v, %v", push, p.totals)
	}
}

// An instance that ends between the call and the saving of its result leaves the push in doubt, and the next attempt is the same.
func TestP8_AResultThatIsNotSavedIsRepeated(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	tx.billable["calls"] = 5
	tx.failSaves = 1
	saga := pushSaga("close/2026-05/1")
	saga.Step = stepPlan
	result, err := c.PushKind().Run(t.Context(), saga)
	if err != nil || result.Step != stepSend {
		t.Fatalf("%+v %v", result, err)
	}
	saga.Step = stepSend
	if _, err := c.PushKind().Run(t.Context(), saga); err == nil {
		t.Fatal("a lost result is no error")
	}
	if push := only(t, tx); push.State != domain.PushStateUnknown || p.sum("calls") != 5 {
		t.Fatalf("%+v", push)
	}
	tx.time = tx.time.Add(domain.PushAttempt)
	if got := runSteps(t, c, saga); got.End != domain.SagaCompleted || p.calls != 2 || p.sum("calls") != 5 || tx.ends(events.PushDelivered) != 1 {
		t.Errorf("%+v, %d calls, %v", got, p.calls, p.totals)
	}
}

// 25 hours later the provider would count the same identifier again: totals or an operator decide.
func TestP8_AnUnknownPushIsResolvedAndNotSentAgain(t *testing.T) {
	for name, counted := range map[string]bool{"counted": true, "not counted": false} {
		c, tx, p := newPushes(t, requested, closed)
		tx.billable["calls"] = 5
		p.answer = func(call int) (bool, domain.PushResult) {
			if call == 1 {
				return counted, domain.PushResult{Outcome: domain.PushUnknown, Reason: "timeout"}
			}
			return true, domain.PushResult{Outcome: domain.PushDelivered}
		}
		saga := pushSaga("close/2026-05/1")
		runSteps(t, c, saga)
		tx.time = tx.time.Add(25 * time.Hour)
		if got := runSteps(t, c, saga); got.End != "" || p.calls != 1 || len(got.Missing) != 1 {
			t.Errorf("%s: %+v after 25 h, %d calls", name, got, p.calls)
		}
		if push := only(t, tx); push.State != domain.PushStateUnknown || push.NextAt != nil || tx.ends(events.PushFailed) != 1 {
			t.Errorf("%s: %+v", name, push)
		}
		id := only(t, tx).ID
		_, err := c.Retry(t.Context(), Request{By: operator}, id, "again")
		refusedWith(t, err, "push_unknown", "")
		if got, err := c.CompareKind().Run(t.Context(), &domain.Saga{Step: stepCompare}); err != nil || got.End != domain.SagaCompleted {
			t.Fatalf("%s: %+v %v", name, got, err)
		}
		if got := runSteps(t, c, saga); got.End != domain.SagaCompleted || p.sum("calls") != 5 || p.calls != map[bool]int{true: 1, false: 2}[counted] {
			t.Errorf("%s: %+v, %d calls, %v", name, got, p.calls, p.totals)
		}
		last := payload[events.Push](t, &tx.appended[len(tx.appended)-1])
		if want := map[bool]string{true: events.ResolvedByTotals, false: ""}[counted]; last.Resolution != want || tx.ends(events.PushCompared) != 0 || len(tx.retries) != 1 {
			t.Errorf("%s: recorded %+v", name, last)
		}
	}
}

// An attempt without an answer may be counted, also if a later one was refused: the total decides it, and does not mistake it for another push.
func TestP8_TotalsDecideARefusedPushInDoubt(t *testing.T) {
	for name, counted := range map[string]bool{"counted": true, "not counted": false} {
		c, tx, p := newPushes(t, requested, closed)
		tx.billable["calls"] = 5
		p.answer = func(call int) (bool, domain.PushResult) {
			return call == 1 && counted, domain.PushResult{Outcome: []domain.PushOutcome{domain.PushUnknown, domain.PushRefused}[min(call, 2)-1]}
		}
		saga := pushSaga("close/2026-05/1")
		runSteps(t, c, saga)
		tx.time = tx.time.Add(time.Hour)
		runSteps(t, c, saga)
		compare := func() domain.SagaResult {
			got, err := c.CompareKind().Run(t.Context(), &domain.Saga{Step: stepCompare})
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		if got := compare(); got.End != "" || only(t, tx).State != domain.PushStateFailed {
			t.Errorf("%s: %+v while a retry may send it", name, got)
		}
		tx.time = tx.time.Add(25 * time.Hour)
		got, push := compare(), only(t, tx)
		if want := map[bool]string{true: domain.PushStateDelivered, false: domain.PushStateFailed}[counted]; got.End != domain.SagaCompleted || push.State != want || tx.ends(events.PushCompared) != 0 {
			t.Errorf("%s: %+v, %+v", name, got, push)
		}
		if !counted && push.UnknownSince != nil {
			t.Errorf("the doubt remains: %+v", push)
		}
	}
}

func TestOperatorsResolveAPush(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	tx.billable["calls"] = 5
	p.answer = func(int) (bool, domain.PushResult) {
		return false, domain.PushResult{Outcome: domain.PushRefused, Code: "resource_missing", Reason: "No such customer"}
	}
	runSteps(t, c, pushSaga("close/2026-05/1"))
	push := only(t, tx)
	if failed := payload[events.FailedPush](t, &tx.appended[0]); failed.Code != "resource_missing" || failed.Reason != "No such customer" || failed.Attempt != 1 ||
		tx.appended[0].DedupeKey != events.KeyPush(push.ID, "failed/1") {
		t.Errorf("recorded %+v", failed)
	}
	if _, err := c.Retry(t.Context(), Request{By: operator}, push.ID, "the customer exists now"); err != nil || only(t, tx).State != domain.PushStatePending || !slices.Equal(tx.retries, []string{"the customer exists now"}) {
		t.Errorf("%v, %+v", err, only(t, tx))
	}
	runSteps(t, c, pushSaga("close/2026-05/1"))
	if tx.ends(events.PushFailed) != 2 || tx.appended[1].DedupeKey != events.KeyPush(push.ID, "failed/2") {
		t.Errorf("recorded %+v", tx.appended)
	}
	answer, event := tx.once(t, caused{subject: events.PushDelivered, tenant: activeTenant, residency: "eu-central-1", key: events.KeyPush(push.ID, "delivered")},
		func(req Request) (any, error) { return c.Resolve(t.Context(), req, push.ID, true, "billed by hand") })
	if got := payload[events.Push](t, &event); got.Resolution != events.ResolvedByOperator || got.Reason != "billed by hand" || answer.(domain.Push).State != domain.PushStateDelivered {
		t.Errorf("recorded %+v", got)
	}
	_, err := c.Resolve(t.Context(), Request{By: operator}, push.ID, false, "r")
	refusedWith(t, err, "push_delivered", "")
	_, err = c.Retry(t.Context(), Request{By: operator}, uuid.UUID{99}, "r")
	refusedWith(t, err, "push_not_found", "")
	_, err = c.Retry(t.Context(), Request{By: operator}, push.ID, "")
	refusedWith(t, err, "reason_required", "/reason")
}

// Without a key of the provider pushes are stored, and say why they wait.
func TestWithoutAProviderPushesWait(t *testing.T) {
	c, tx, _ := newPushes(t, requested, closed)
	c.Provider = nil
	tx.billable["calls"] = 5
	got := runSteps(t, c, pushSaga("close/2026-05/1"))
	if push := only(t, tx); got.End != "" || got.Wait == 0 || push.State != domain.PushStatePending || push.Attempts != 0 || !strings.Contains(push.LastError, "METERPLEX_STRIPE_KEY") {
		t.Errorf("%+v, %+v", got, push)
	}
	if got, err := c.CompareKind().Run(t.Context(), &domain.Saga{Step: stepCompare}); err != nil || got.End != "" || len(got.Missing) != 1 {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := c.CompareKind().Run(t.Context(), &domain.Saga{Step: stepCompare, State: domain.SagaPartial}); err != nil || got.Outcome != domain.SagaIsPartial {
		t.Errorf("each day leaves an open comparison: %+v %v", got, err)
	}
}

func TestP8_ADifferenceOfTotalsIsAnEvent(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	tx.billable = map[string]int64{"calls": 5, "tokens": 7}
	runSteps(t, c, pushSaga("close/2026-05/1"))
	p.totals["cus_1 calls 2026-05"].SetInt64(9)
	c.Settle = time.Hour
	if got, err := c.CompareKind().Run(t.Context(), &domain.Saga{Step: stepCompare}); err != nil || got.End != "" || len(got.Missing) != 2 || tx.ends(events.PushCompared) != 0 {
		t.Errorf("before totals are complete: %+v %v", got, err)
	}
	tx.time = tx.time.Add(time.Hour)
	if got, err := c.CompareKind().Run(t.Context(), &domain.Saga{Step: stepCompare}); err != nil || got.End != domain.SagaCompleted || tx.ends(events.PushCompared) != 1 {
		t.Fatalf("%+v %v", got, err)
	}
	got := payload[events.ComparedPushes](t, &tx.appended[len(tx.appended)-1])
	if want := (events.ComparedPushes{Provider: "stripe", Customer: "cus_1", Feature: "calls", PeriodKey: "2026-05", Total: "9", Delivered: "5", Difference: "4"}); got != want {
		t.Errorf("recorded %+v", got)
	}
	if tx.comparisons["cus_1 calls 2026-05"] != "9 5" || tx.comparisons["cus_1 tokens 2026-05"] != "7 7" {
		t.Errorf("compared %v", tx.comparisons)
	}
}

func TestBillingStartsThePushOfRecentPeriods(t *testing.T) {
	c, tx, _ := newPushes(t, requested, closed)
	alice := tx.tenants[activeTenant]
	alice.Billing = nil
	tx.tenants[activeTenant] = alice
	tx.recent = []domain.Closing{{TenantID: activeTenant, PeriodKey: "2026-05", Snapshot: 1}}
	to := &events.Billing{Provider: events.ProviderStripe, Customer: "cus_2"}
	_, event := tx.once(t, caused{subject: events.TenantChanged, tenant: activeTenant, residency: "eu-central-1"},
		func(req Request) (any, error) { return c.SetBilling(t.Context(), req, activeTenant, to) })
	if got := payload[events.Tenant](t, &event); got.Billing == nil || *got.Billing != *to {
		t.Errorf("recorded %+v", got)
	}
	if _, ok := tx.sagas[SagaBillingPush+" billing/2026-05/1/1"]; !ok || len(tx.sagas) != 1 {
		t.Errorf("started %v", tx.sagas)
	}
	if got, err := c.SetBilling(t.Context(), Request{By: operator}, activeTenant, nil); err != nil || got.Billing != nil || len(tx.sagas) != 1 || len(tx.appended) != 2 {
		t.Errorf("%+v %v", got, err)
	}
	for pointer, bad := range map[string]events.Billing{"/provider": {Provider: "other", Customer: "c"}, "/customer": {Provider: "stripe", Customer: "a b"}} {
		_, err := c.SetBilling(t.Context(), Request{By: operator}, activeTenant, &bad)
		refusedWith(t, err, pointer[1:]+"_invalid", pointer)
	}
	_, err := c.SetBilling(t.Context(), Request{By: operator}, uuid.UUID{99}, to)
	refusedWith(t, err, "tenant_not_found", "")
}

// A close and an approval start a push in their own transaction, if the tenant has billing.
func TestP8_ClosesAndApprovalsStartPushes(t *testing.T) {
	for _, billed := range []bool{true, false} {
		p, tx := newPeriods(requested)
		alice := tx.memory.tenants[activeTenant]
		if billed {
			alice.Billing = &events.Billing{Provider: events.ProviderStripe, Customer: "cus_1"}
		}
		tx.memory.tenants[activeTenant] = alice
		tx.log, tx.rows = figuresOf(3, 5), figuresOf(3, 5)
		tx.again = true
		if got, err := p.CloseKind().Run(t.Context(), closeSaga(stepFreeze)); err != nil || got.End != domain.SagaCompleted {
			t.Fatalf("%+v %v", got, err)
		}
		id := uuid.UUID{7}
		for _, decision := range []string{DecisionWaive, DecisionApprove} {
			tx.adjustments[id] = domain.Adjustment{ID: id, TenantID: activeTenant, PeriodKey: "2026-05", Snapshot: 1, State: events.AdjustmentPending, Amount: figuresOf(1, 2).Lines[0].Amount}
			if _, err := p.Decide(t.Context(), Request{By: operator}, DecideAdjustments{IDs: []uuid.UUID{id}, Decision: decision, Reason: "r"}); err != nil {
				t.Fatal(err)
			}
		}
		keys := []string{}
		for key, saga := range tx.sagas {
			if saga.Kind == SagaBillingPush {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		want := []string{}
		if billed {
			want = []string{"adjust/2026-05/1/4", "close/2026-05/1"}
		}
		if !slices.Equal(keys, want) {
			t.Errorf("billing %v: started %q instead of %q", billed, keys, want)
		}
	}
}

func TestComparisonsAreStartedOnceADay(t *testing.T) {
	c, tx, _ := newPushes(t, requested, closed)
	s := &Comparisons{Pushes: c, Logger: c.Logger}
	start := func(want int) {
		t.Helper()
		if err := s.start(t.Context()); err != nil || len(tx.sagas) != want {
			t.Errorf("%d sagas instead of %d: %v", len(tx.sagas), want, err)
		}
	}
	start(0)
	_, err := c.Reconcile(t.Context(), Request{By: operator})
	refusedWith(t, err, "billing_not_configured", "")
	tx.billable["calls"] = 5
	runSteps(t, c, pushSaga("close/2026-05/1"))
	start(1)
	start(1)
	tx.time = tx.time.Add(24 * time.Hour)
	start(2)
	for i := range 2 {
		if saga, err := c.Reconcile(t.Context(), Request{By: operator}); err != nil || saga.Kind != SagaBillingCompare || len(tx.sagas) != 3+i {
			t.Errorf("%+v %v", saga, err)
		}
	}
}
