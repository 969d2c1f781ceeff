package http_test

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
)

// scriptedProvider answers each attempt by send, and runs meanwhile after it computed a total. Both may be nil.
type scriptedProvider struct {
	countingProvider
	send      func(due push.Push) (counts bool, result push.Result)
	meanwhile func()
	calls     int
}

func (p *scriptedProvider) Send(ctx context.Context, due push.Push, of events.TracedEvent) push.Result {
	p.calls++
	counts, result := true, push.Result{Outcome: push.Delivered}
	if p.send != nil {
		counts, result = p.send(due)
	}
	if counts {
		p.countingProvider.Send(ctx, due, of)
	}
	return result
}

func (p *scriptedProvider) Total(context.Context, string, string, time.Time, time.Time) (*big.Int, error) {
	defer func() {
		if p.meanwhile != nil {
			p.meanwhile()
		}
	}()
	return p.sum(), nil
}

// pushing returns a service whose tenant has a closed period with usage of 10, to be pushed.
func pushing(t *testing.T) (*testService, *account, *scriptedProvider) {
	w, a := newServiceWithAccount(t)
	w.want(200, call{"PUT", "/api/v1/tenants/" + a.id + "/billing", bootstrap, nil, `{"provider":"stripe","customer":"cus_1"}`})
	w.accept(a, old("one", 10))
	w.closed(a)
	return w, a, &scriptedProvider{countingProvider: countingProvider{w: w, counts: map[string]*big.Int{}}}
}

// compared runs a comparison, and returns the number of differences in the log.
func (w *testService) compared(p *scriptedProvider) (differences int) {
	w.Helper()
	w.want(202, call{"POST", "/api/v1/pushes/reconcile", bootstrap, nil, nil})
	w.runPushes(p)
	return w.differences()
}

func (w *testService) differences() (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(), `SELECT count(*) FROM event_log_rows WHERE subject = 78`).Scan(&n))
	return n
}

// A push that is delivered while the provider computes its total is in the sum that is read before, or after it: the total decides nothing.
func TestP8_NoTotalDecidesAPushThatIsSentMeanwhile(t *testing.T) {
	w, _, p := pushing(t)
	w.runPushes(p)
	w.exec(`UPDATE pushes SET counted_at = date_trunc('second', now())`) // within the last 35 days on each day of a month
	p.meanwhile = func() {
		w.exec(`UPDATE pushes SET amount = 12`)
		p.meanwhile = nil
	}
	w.same("differences of a total from before", w.compared(p), 0)
	p.counts["of the push"] = big.NewInt(2)
	w.due()
	w.runPushes(p)
	w.same("differences of the next total", w.differences(), 0)
}

// 25 hours later the provider would count the same identifier again: its total tells whether an attempt without an answer was counted.
func TestP8_TotalsDecideAPushInDoubt(t *testing.T) {
	for name, counted := range map[string]bool{"counted": true, "not counted": false} {
		w, _, p := pushing(t)
		p.send = func(push.Push) (bool, push.Result) {
			return counted, push.Result{Outcome: push.Unknown, Reason: "timeout"}
		}
		w.runPushes(p)
		w.exec(`UPDATE pushes SET counted_at = date_trunc('second', now()), next_at = now(),
 first_attempt_at = now() - interval '25 hours', unknown_since = now() - interval '25 hours'`)
		w.due()
		w.runPushes(p)
		w.same(name+", 25 hours later", w.listedPushes("", "state", "nextAt"), []string{"UNKNOWN <nil>"})
		w.same(name+", attempts", p.calls, 1)
		p.send = nil
		w.same(name+", differences", w.compared(p), 0)
		w.same(name+", decided", w.listedPushes("", "state"), []string{"DELIVERED"})
		w.same(name+", the provider's sum", p.sum(), 10)
	}
}

// A refused secret key concerns all pushes of a period: one of them asks the provider, all show the reason, and all are sent once the key
// is corrected.
func TestP8_OnePushAsksWhileTheSecretKeyIsRefused(t *testing.T) {
	w, a, p := pushing(t)
	p.send = func(push.Push) (bool, push.Result) {
		return false, push.Result{Outcome: push.KeyRefused, Code: "provider_key_refused", Reason: "the key is refused"}
	}
	w.runPushes(p)
	w.push(a.id, 7, "PENDING")
	w.exec(`UPDATE pushes SET next_at = now(), counted_at = date_trunc('second', now())`)
	w.due()
	w.runPushes(p)
	w.same("attempts in two looks", p.calls, 2)
	shown := "PENDING the key is refused"
	w.same("shown", w.listedPushes("", "state", "lastError"), []string{shown, shown})
	w.exec(`UPDATE pushes SET next_at = now()`)
	p.send = nil
	w.due()
	w.runPushes(p)
	w.same("after the correction", w.listedPushes("", "state"), []string{"DELIVERED", "DELIVERED"})
	w.same("the provider's sum", p.sum(), 22)
}
