package commands

import (
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

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
