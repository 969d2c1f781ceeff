package http_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// asked is a request to consume, and told its answer.
type asked struct {
	account, id string
	amount      int64
}

type told struct {
	status int
	used   int64 // after a grant, or at a denial
	body   string
}

// history holds the answers that clients saw. Each grant leaves its account at another sum, so that the sums name the grants.
type history struct {
	mu     sync.Mutex
	began  time.Time
	ops    []porcupine.Operation
	grants map[string]map[int64]string // by account and sum after it: the id
	sums   map[string]int64            // by account and id
	bodies map[string]string
	faults []string
}

// model is an account with a limit: a request is granted if its amount fits, and a granted one is answered again.
func (h *history) model(limit int64) porcupine.Model {
	return porcupine.Model{
		Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
			of := map[string][]porcupine.Operation{}
			for _, op := range all {
				of[op.Input.(asked).account] = append(of[op.Input.(asked).account], op)
			}
			for _, part := range of {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return int64(0) },
		Step: func(state, input, output any) (bool, any) {
			used, in, out := state.(int64), input.(asked), output.(told)
			sum, granted := h.sums[in.account+"/"+in.id]
			before := granted && sum <= used // it was granted before
			switch {
			case out.status == 409:
				return !before && out.used == used && used+in.amount > limit, used
			case before:
				return out.used == sum, used
			}
			return out.used == used+in.amount && out.used <= limit, out.used
		},
	}
}

// add records an answer.
func (h *history) add(client int, in asked, call time.Time, got answer) {
	var says struct {
		Used json.Number `json:"used"`
	}
	_ = json.Unmarshal(got.body, &says)
	used, err := says.Used.Int64()
	out := told{got.status, used, string(got.body)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || got.status != 200 && got.status != 409 {
		h.faults = append(h.faults, fmt.Sprintf("%s: %d %s", in.id, got.status, got.body))
		return
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call.Sub(h.began).Nanoseconds(), Output: out, Return: time.Since(h.began).Nanoseconds()})
	if got.status != 200 {
		return
	}
	key := in.account + "/" + in.id
	if first, known := h.bodies[key]; known && first != out.body {
		h.faults = append(h.faults, fmt.Sprintf("%s got %s, then %s", key, first, out.body))
	}
	h.bodies[key], h.sums[key] = out.body, used
	if h.grants[in.account] == nil {
		h.grants[in.account] = map[int64]string{}
	}
	if other, taken := h.grants[in.account][used]; taken && other != in.id {
		h.faults = append(h.faults, fmt.Sprintf("%s and %s both left %s at %d", other, in.id, in.account, used))
	}
	h.grants[in.account][used] = in.id
}

// 32 clients consume three accounts in a round, over two instances, and repeat requests. What they see is what one account
// after another, decided in one order, would tell them.
func TestP7_ConsumptionsAreLinearizable(t *testing.T) {
	const limit, accounts, clients, rounds, each = 300, 3, 32, 8, 80
	w := newTestService(t)
	other := w.secondInstance()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w.want(201, call{"PUT", "/api/v1/features/api_calls", bootstrap, nil, `{"name":"Calls","type":"QUOTA"}`})
	w.want(201, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, fmt.Sprintf(`{"name":"Basic","entitlements":[{"feature":"api_calls","limit":%d,"limitBehavior":"HARD","resetPeriod":"NEVER"}]}`, limit)})
	h := &history{began: time.Now(), grants: map[string]map[int64]string{}, sums: map[string]int64{}, bodies: map[string]string{}}
	for round := range rounds {
		var tenants []*account
		for n := range accounts {
			tenants = append(tenants, w.newAccount(fmt.Sprint(round, "-", n)))
		}
		var all sync.WaitGroup
		for client := range clients {
			all.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(round*clients+client)))
				for n := range each {
					of := tenants[r.IntN(accounts)]
					in := asked{of.id, fmt.Sprintf("%d-%d", client, n-r.IntN(8)/7), 0} // the one before it, one time of eight
					in.amount = 1 + int64(len(in.id)+client+int(in.id[len(in.id)-1]))%9
					through := []*testService{w, other}[r.IntN(2)]
					call := time.Now()
					h.add(client, in, call, through.do(consuming(of.key, "api_calls", url.PathEscape(in.id), in.amount)))
				}
			})
		}
		all.Wait()
	}
	for _, fault := range h.faults[:min(len(h.faults), 10)] {
		t.Error(fault)
	}
	if result := porcupine.CheckOperationsTimeout(h.model(limit), h.ops, 0); result != porcupine.Ok {
		t.Errorf("the history of %d operations is %s", len(h.ops), result)
	}
	granted := len(h.sums)
	if len(h.ops) < 20_000 || granted < 1000 || len(h.ops)-granted < 1000 {
		t.Errorf("the history has %d operations, %d of them granted", len(h.ops), granted)
	}
	w.must(w.pool.Ping(t.Context()))
	var beyond int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM quota_accounts WHERE used > $1`, limit).Scan(&beyond))
	if beyond != 0 {
		t.Errorf("%d accounts are beyond their limit", beyond)
	}
}
