package http_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/domain"
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

// The limit lies in the middle of a batch: each event is decided in its turn, and smaller ones behind a refused one still fit.
func TestP7_TheLimitMayLieInTheMiddleOfABatch(t *testing.T) {
	const limit = 25_000 // half of the batch
	w := newTestService(t)
	w.catalogue()
	w.putPlan(enforcing(limit))
	a := w.newAccount("A")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	list, amounts := drawEvents(rand.New(rand.NewPCG(seed, 0)), domain.MaxBatch, 99)
	sent := call{"POST", "/api/v1/usage/events", a.writer, nil, batch(list...)}
	left := limit
	first := verdicts(w.want(202, sent))
	for i, v := range first {
		want := "accepted <nil> <nil>"
		if amounts[i] > left {
			want = fmt.Sprintf("rejected quota_exceeded /events/%d/amount", i)
		} else {
			left -= amounts[i]
		}
		if got := valuesOf(v, "status", "code", "pointer"); got != want {
			t.Fatalf("event %d of %d with %d left: %s instead of %s", i, amounts[i], left, got, want)
		}
	}
	for i, v := range verdicts(w.want(202, sent)) {
		if want := map[any]string{"accepted": "duplicate", "rejected": "rejected"}[first[i]["status"]]; v["status"] != want {
			t.Fatalf("event %d is %s, sent again %s", i, first[i]["status"], v["status"])
		}
	}
	if w.used(a.id) != fmt.Sprint(limit-left) {
		t.Errorf("%s are used instead of %d", w.used(a.id), limit-left)
	}
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

// CloudEvents are usage like any other, in each of their forms.
func TestP7_CloudEventsAreRefusedAboveAnEnforcedLimit(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.putPlan(enforcing(10))
	sentAt := now()
	cloudEvent := func(id string, amount int) map[string]any {
		return map[string]any{"specversion": "1.0", "id": id, "source": "/gateway", "type": "api_calls", "time": sentAt, "data": map[string]any{"amount": amount}}
	}
	for name, form := range map[string]func(id string, amount int) call{
		"structured": func(id string, amount int) call {
			return call{header: map[string]string{"Content-Type": "application/cloudevents+json"}, body: cloudEvent(id, amount)}
		},
		"batch": func(id string, amount int) call {
			return call{header: map[string]string{"Content-Type": "application/cloudevents-batch+json"}, body: []any{cloudEvent(id, amount)}}
		},
		"binary": func(id string, amount int) call {
			return call{header: map[string]string{"ce-specversion": "1.0", "ce-id": id, "ce-source": "/gateway", "ce-type": "api_calls", "ce-time": sentAt}, body: fmt.Sprintf(`{"amount":%d}`, amount)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := w.newAccount(name)
			for n, c := range []struct {
				id     string
				amount int
				status int // of a single event
				want   string
			}{
				{"1", 6, 202, "accepted"}, {"2", 5, 409, "quota_exceeded"}, {"3", 4, 202, "accepted"}, {"4", 1, 409, "quota_exceeded"},
				{"1", 6, 202, "duplicate"}, {"3", 5, 409, "payload_conflict"}, {"2", 5, 409, "quota_exceeded"},
			} {
				sent := form(c.id, c.amount)
				sent.key = a.writer
				if name == "batch" {
					c.status = 202
				}
				if got, _, _ := strings.Cut(w.outcome(c.status, sent), " "); got != c.want {
					t.Errorf("request %d: %v instead of %s", n, got, c.want)
				}
			}
			if w.used(a.id) != "10" {
				t.Errorf("%s are used", w.used(a.id))
			}
		})
	}
}
