package commands

import (
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
