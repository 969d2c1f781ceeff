package http_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
)

// The clocks of instances differ: a change holds for the requests behind it in the log, also those that an instance
// decides whose clock is behind that of the changing instance.
func TestP7_AChangeByAFastClockHoldsAtOnceForConsumptions(t *testing.T) {
	w := newTestService(t)
	fast := *w
	ahead := w.server()
	ahead.Catalogue = &commands.Catalogue{Store: w.store, Now: func() time.Time { return time.Now().Add(time.Hour) }, NewID: newID, NewSecret: ahead.Catalogue.NewSecret}
	fast.serve(ahead)
	w.catalogue()
	a := w.newAccount("A")
	subscription := "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription
	limit := func(n int) {
		fast.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, map[string]any{"name": "Basic", "entitlements": []any{
			map[string]any{"feature": "api_calls", "limit": n, "limitBehavior": "HARD", "resetPeriod": "MONTHLY"}}}})
		fast.want(200, call{"PATCH", subscription, bootstrap, nil, `{"plan":"basic"}`})
	}
	w.want(200, consuming(a.key, "api_calls", "1", 10))
	limit(10)
	w.refused(w.do(consuming(a.key, "api_calls", "2", 1)), 409, "quota_exceeded")
	limit(2000)
	if got := w.want(200, consuming(a.key, "api_calls", "3", 1500)); fmt.Sprint(got["limit"]) != "2000" {
		t.Errorf("%v", got)
	}
	fast.want(200, call{"PATCH", subscription, bootstrap, nil, `{"status":"CANCELLED"}`})
	w.refused(w.do(consuming(a.key, "api_calls", "4", 1)), 409, "no_active_subscription")
}
