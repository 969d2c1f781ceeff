package commands

import (
	"context"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

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
