package commands

import (
	"context"
	"math/big"
	"strings"
	"testing"
	"time"

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

// A push that is delivered while the provider computes its total is in the sum that is read before, or after it: the total decides nothing.
func TestP8_NoTotalDecidesAPushThatIsSentMeanwhile(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	tx.billable["calls"] = 5
	runSteps(t, c, pushSaga("close/2026-05/1"))
	p.meanwhile = func() {
		push := only(t, tx)
		push.Amount = big.NewInt(7)
		tx.pushes[push.ID] = push
		p.meanwhile = nil
	}
	got, err := c.CompareKind().Run(t.Context(), &domain.Saga{Step: stepCompare})
	if err != nil || got.End != "" || tx.ends(events.PushCompared) != 0 || len(tx.comparisons) > 0 {
		t.Errorf("%+v %v: compared %v", got, err, tx.comparisons)
	}
}

func TestBillingStartsThePushOfRecentPeriods(t *testing.T) {
	c, tx, _ := newPushes(t, requested, closed)
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
	got, err := c.SetBilling(t.Context(), Request{By: operator}, activeTenant, nil)
	if err != nil || got.Billing != nil || len(tx.sagas) != 1 || len(tx.appended) != 2 {
		t.Errorf("%+v %v, started %v", got, err, tx.sagas)
	}
	for pointer, bad := range map[string]events.Billing{"/provider": {Provider: "other", Customer: "c"},
		"/customer": {Provider: "stripe", Customer: "a b"}} {
		_, err := c.SetBilling(t.Context(), Request{By: operator}, activeTenant, &bad)
		refusedWith(t, err, pointer[1:]+"_invalid", pointer)
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

// A refused secret key concerns all pushes of the period: one of them asks the provider, all show the reason, and all are sent once the key is corrected.
func TestP8_OnePushAsksWhileTheSecretKeyIsRefused(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	tx.billable = map[string]int64{"calls": 5, "tokens": 7, "seats": 9}
	refused := true
	p.answer = func(int) (bool, domain.PushResult) {
		if refused {
			return false, domain.PushResult{Outcome: domain.PushKeyRefused, Code: "provider_key_refused", Reason: "METERPLEX_STRIPE_KEY"}
		}
		return true, domain.PushResult{Outcome: domain.PushDelivered}
	}
	saga := pushSaga("close/2026-05/1")
	for look := range 3 {
		if got := runSteps(t, c, saga); got.End != "" || got.Wait != time.Minute || len(got.Missing) != 3 || p.calls != look+1 {
			t.Fatalf("look %d: %+v, %d calls", look, got, p.calls)
		}
		for _, push := range tx.sorted() {
			if push.State != domain.PushStatePending || !strings.Contains(push.LastError, "METERPLEX_STRIPE_KEY") {
				t.Errorf("%+v", push)
			}
		}
		tx.time = tx.time.Add(time.Minute)
	}
	refused = false
	tx.time = tx.time.Add(5 * time.Minute)
	if got := runSteps(t, c, saga); got.End != domain.SagaCompleted || p.calls != 6 || tx.ends(events.PushFailed) != 0 || p.sum("calls")+p.sum("tokens")+p.sum("seats") != 21 {
		t.Errorf("%+v, %d calls, %v", got, p.calls, p.totals)
	}
}

// An instance that stops during a call saves the result: otherwise the push is in doubt for two minutes, and is sent again.
func TestP8_AStoppingInstanceSavesTheResult(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	tx.billable["calls"] = 5
	ctx, stop := context.WithCancel(t.Context())
	p.answer = func(int) (bool, domain.PushResult) {
		stop()
		return true, domain.PushResult{Outcome: domain.PushDelivered}
	}
	tx.ended = func(ctx context.Context) error { return ctx.Err() }
	saga := pushSaga("close/2026-05/1")
	if _, err := c.PushKind().Run(ctx, saga); err != nil {
		t.Fatal(err)
	}
	saga.Step = stepSend
	_, _ = c.PushKind().Run(ctx, saga)
	if push := only(t, tx); push.State != domain.PushStateDelivered || tx.ends(events.PushDelivered) != 1 {
		t.Errorf("%+v", push)
	}
}

// Without billing no push is planned, and the saga ends in its first step, by which verify recognizes it. Pushes that are stored are still sent.
func TestP8_WithoutBillingOnlyStoredPushesAreSent(t *testing.T) {
	for name, stored := range map[string]bool{"nothing is stored": false, "a push is stored": true} {
		c, tx, p := newPushes(t, requested, closed)
		tx.billable["calls"] = 5
		saga := pushSaga("close/2026-05/1")
		if stored { // by a step whose instance ended behind its commit
			if _, err := c.PushKind().Run(t.Context(), saga); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.SetBilling(t.Context(), Request{By: operator}, activeTenant, nil); err != nil {
			t.Fatal(err)
		}
		step := map[bool]string{false: stepPlan, true: stepSend}[stored]
		if got := runSteps(t, c, saga); got.End != domain.SagaCompleted || saga.Step != step || (p.sum("calls") == 5) != stored {
			t.Errorf("%s: %+v in step %s, %d counted", name, got, saga.Step, p.sum("calls"))
		}
	}
}
