package commands

import (
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Another customer gets the pushes that were never sent; one that was sent, with an unknown result, keeps its customer.
func TestP8_StoredPushesGoToTheCustomerOfTheirTenant(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	tx.billable["api_calls"] = 5
	c.Provider = nil
	saga := pushSaga("close/2026-05/1")
	runSteps(t, c, saga)
	set := func(customer string) {
		if _, err := c.SetBilling(t.Context(), Request{By: operator}, activeTenant, &events.Billing{Provider: events.ProviderStripe, Customer: customer}); err != nil {
			t.Fatal(err)
		}
	}
	set("cus_2")
	c.Provider = p
	p.answer = func(int) (bool, domain.PushResult) { return false, domain.PushResult{Outcome: domain.PushUnknown} }
	tx.time = tx.time.Add(time.Hour)
	runSteps(t, c, saga)
	set("cus_3")
	if got := only(t, tx); got.Customer != "cus_2" || got.Attempts != 1 {
		t.Errorf("%+v", got)
	}
}

// A push with a wrong customer is refused for ever: a retry goes to the corrected one. A push in doubt stays as it was sent.
func TestP8_ARetryGoesToTheCorrectedCustomer(t *testing.T) {
	for name, outcome := range map[string]domain.PushOutcome{"refused": domain.PushRefused, "in doubt": domain.PushUnknown} {
		c, tx, p := newPushes(t, requested, closed)
		tx.billable["api_calls"] = 5
		p.answer = func(call int) (bool, domain.PushResult) {
			return call > 1, domain.PushResult{Outcome: map[bool]domain.PushOutcome{true: domain.PushDelivered, false: outcome}[call > 1]}
		}
		saga := pushSaga("close/2026-05/1")
		runSteps(t, c, saga)
		if _, err := c.SetBilling(t.Context(), Request{By: operator}, activeTenant, &events.Billing{Provider: events.ProviderStripe, Customer: "cus_2"}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Retry(t.Context(), Request{By: operator}, only(t, tx).ID, "the customer was wrong"); err != nil {
			t.Fatal(err)
		}
		tx.time = tx.time.Add(time.Hour)
		want := map[bool]string{true: "cus_2", false: "cus_1"}[outcome == domain.PushRefused]
		if got := runSteps(t, c, saga); got.End != domain.SagaCompleted || p.totals[want+" api_calls 2026-05"] == nil || p.sum("api_calls") != 5 || only(t, tx).Customer != want {
			t.Errorf("%s: %+v, %v", name, got, p.totals)
		}
	}
}

// A credit goes to the customer that paid, not to the one of now: as long as it is not sent, and after a refusal.
func TestP8_ACreditGoesToTheCustomerThatWasCharged(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	set := func(customer string) {
		if _, err := c.SetBilling(t.Context(), Request{By: operator}, activeTenant, &events.Billing{Provider: events.ProviderStripe, Customer: customer}); err != nil {
			t.Fatal(err)
		}
	}
	push := func(key string, billable int64) {
		tx.billable["api_calls"] = billable
		runSteps(t, c, pushSaga(key))
		tx.time = tx.time.Add(time.Hour)
	}
	push("close/2026-05/1", 10)
	set("cus_2")
	tx.adjusted["api_calls"] = -6
	c.Provider = nil
	push("adjust/2026-05/1/7", 4) // 6 less, stored and not sent
	set("cus_3")
	c.Provider = p
	p.answer = func(call int) (bool, domain.PushResult) { return false, domain.PushResult{Outcome: domain.PushRefused} }
	push("adjust/2026-05/1/7", 4)
	set("cus_4")
	for _, push := range tx.sorted() {
		if push.State == domain.PushStateFailed {
			if _, err := c.Retry(t.Context(), Request{By: operator}, push.ID, "the meter exists now"); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.answer = nil
	push("adjust/2026-05/1/8", 4)
	tx.adjusted["api_calls"] = 2
	push("adjust/2026-05/1/9", 12)
	tx.adjusted["api_calls"] = -9
	push("adjust/2026-05/1/10", 1)
	got := map[string]int64{}
	for key, total := range p.totals {
		got[strings.Fields(key)[0]] += total.Int64()
	}
	if want := map[string]int64{"cus_1": 1, "cus_4": 0}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v: %+v", got, want, tx.sorted())
	}
}

// A credit that was never sent moves with the charge that it lessens.
func TestP8_ACreditMovesWithItsCharge(t *testing.T) {
	c, tx, p := newPushes(t, requested, closed)
	c.Provider = nil
	for n, billable := range []int64{10, 4} {
		tx.billable["api_calls"], tx.adjusted["api_calls"] = billable, billable-10
		runSteps(t, c, pushSaga("adjust/2026-05/1/"+strconv.Itoa(n+1)))
	}
	if _, err := c.SetBilling(t.Context(), Request{By: operator}, activeTenant, &events.Billing{Provider: events.ProviderStripe, Customer: "cus_2"}); err != nil {
		t.Fatal(err)
	}
	c.Provider = p
	runSteps(t, c, pushSaga("close/2026-05/1"))
	for key := range p.totals {
		if !strings.HasPrefix(key, "cus_2 ") {
			t.Errorf("pushed to %s: %+v", key, tx.sorted())
		}
	}
	if p.sum("api_calls") != 4 {
		t.Errorf("%v", p.totals)
	}
}
