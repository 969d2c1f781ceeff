package http_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// putPlan changes the plan "basic", which then has api_calls only: HARD and MONTHLY, but for the members given.
func (w *testService) putPlan(members map[string]any) {
	w.Helper()
	grant := map[string]any{"feature": "api_calls", "limitBehavior": "HARD", "resetPeriod": "MONTHLY"}
	maps.Copy(grant, members)
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, map[string]any{"name": "Basic", "entitlements": []any{grant}}})
}

// applyPlan gives an account the plan as it is now.
func (w *testService) applyPlan(a *account) {
	w.Helper()
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id + "/subscriptions/" + a.subscription, bootstrap, nil, `{"plan":"basic"}`})
}

// enforcing is a plan that enforces its limit on ingest.
func enforcing(limit int) map[string]any {
	return map[string]any{"limit": limit, "onIngest": "enforce"}
}

// drawEvents draws usage of api_calls with amounts up to most.
func drawEvents(r *rand.Rand, n, most int) (list []any, amounts []int) {
	for i := range n {
		amounts = append(amounts, 1+r.IntN(most))
		list = append(list, event(fmt.Sprint("e", i), map[string]any{"amount": amounts[i]}))
	}
	return list, amounts
}

// 16 clients send the same batch, every second one in the opposite order, through two instances: each event is granted once or
// refused to all clients. At the end no refused event would fit.
func TestP7_SixteenClientsSendTheSameEnforcedBatch(t *testing.T) {
	const clients, size = 16, 400
	w := newTestService(t)
	other := w.secondInstance()
	w.catalogue()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for most, limit := range map[int]int{1: size / 2, 30: size * 31 / 4} { // half of the batch
		w.putPlan(enforcing(limit))
		a := w.newAccount(fmt.Sprint(most))
		list, amounts := drawEvents(rand.New(rand.NewPCG(seed, uint64(most))), size, most)
		backwards := slices.Clone(list)
		slices.Reverse(backwards)
		got := make([]answer, clients)
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				through, order := []*testService{w, other}[i/2%2], [][]any{list, backwards}[i%2]
				// A busy machine may refuse a batch, of which it then has stored no event.
				for got[i].status == 0 || got[i].status == 503 {
					got[i] = through.do(call{"POST", "/api/v1/usage/events", a.writer, nil, batch(order...)})
				}
			})
		}
		all.Wait()
		counts := map[string]map[string]int{} // of the verdicts on an event
		for i := range got {
			var body map[string]any
			if err := json.Unmarshal(got[i].body, &body); err != nil || got[i].status != 202 {
				t.Fatalf("client %d: %d %s", i, got[i].status, got[i].body)
			}
			for _, v := range verdicts(body) {
				id, status := fmt.Sprint(v["eventId"]), valuesOf(v, "status", "code")
				if counts[id] == nil {
					counts[id] = map[string]int{}
				}
				counts[id][status]++
			}
		}
		used, denied := 0, map[int]int{} // amounts
		for i, n := range amounts {
			switch c := counts[fmt.Sprint("e", i)]; {
			case c["accepted <nil>"] == 1 && c["duplicate <nil>"] == clients-1:
				used += n
			case c["rejected quota_exceeded"] == clients:
				denied[n]++
			default:
				t.Fatalf("event %d has the verdicts %v", i, c)
			}
		}
		for n := range denied {
			if n <= limit-used {
				t.Errorf("%d are refused, and %d remain", n, limit-used)
			}
		}
		if w.used(a.id) != fmt.Sprint(used) || used > limit || most == 1 && used != limit || len(denied) == 0 {
			t.Errorf("%d are granted, %s used, of %d", used, w.used(a.id), limit)
		}
	}
}
