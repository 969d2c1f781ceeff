package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// limited are grants with HARD limits: tokens are consumed and held, requests are usage that the plan enforces.
func limited(tokens, requests int64) []object {
	return []object{
		{"feature": "tokens", "limit": tokens, "limitBehavior": "HARD", "resetPeriod": "MONTHLY"},
		{"feature": "requests", "limit": requests, "limitBehavior": "HARD", "resetPeriod": "MONTHLY", "onIngest": "enforce"},
	}
}

// firstLimit is the limit of the first tokens and requests. Each tenant's limits follow its usage.
const firstLimit = 1000

// limitsLoad sends requests about limits beside the other load, and compares the accounts with the log.
type limitsLoad struct {
	x    *torture
	keys map[*tenant]string
	fold accountFold
	// longest is the longest time of a reservation, in seconds.
	longest int

	mu      sync.Mutex
	made    int
	open    []*ask              // consumptions and commits without an answer so far
	answers map[string][]byte   // first answers of consumptions, by tenant and eventId
	repeat  []*ask              // answered ones, to be sent again
	counts  map[string]int      // of requests, by kind and outcome
	held    map[*tenant][]*hold // that may still be held
}

// ask is a consumption or a commit.
type ask struct {
	tenant *tenant
	path   string
	event  event
	body   object
}

// hold is a reservation that was held.
type hold struct {
	id     string
	amount int64
}

func newLimitsLoad(x *torture) *limitsLoad {
	longest := 5
	if x.long {
		longest = 30
	}
	return &limitsLoad{x: x, longest: longest, keys: map[*tenant]string{}, fold: accountFold{ended: map[string]int{}}, answers: map[string][]byte{}, counts: map[string]int{}, held: map[*tenant][]*hold{}}
}

// createKeys creates the keys for requests about limits.
func (k *limitsLoad) createKeys(at *instance) {
	for _, tenant := range k.x.tenants {
		k.keys[tenant] = k.x.keyOf(at, tenant, "entitlements:reserve", "entitlements:read")
	}
}

func (k *limitsLoad) count(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[what]++
}

// name returns an id that is new in the run.
func (k *limitsLoad) name(kind string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made++
	return fmt.Sprintf("%s-%d", kind, k.made)
}

// requests does some operations of a client.
func (k *limitsLoad) requests(ctx context.Context, rng *rand.Rand) {
	for range 5 {
		if !k.x.work.rest.Load() && ctx.Err() == nil {
			k.request(ctx, rng)
		}
	}
}

// request does one operation for a tenant.
func (k *limitsLoad) request(ctx context.Context, rng *rand.Rand) {
	tenant := k.x.tenants[rng.IntN(len(k.x.tenants))]
	switch n := rng.IntN(10); {
	case n < 3:
		id, amount := k.name("consumed"), 1+rng.Int64N(60)
		k.send(ctx, &ask{tenant, "/consume", event{EventID: id, Feature: "tokens", Amount: amount}, object{"eventId": id, "amount": amount}})
	case n == 3:
		k.sendAgain(ctx, rng)
	case n < 7:
		k.hold(ctx, rng, tenant)
	default:
		k.end(ctx, rng, tenant)
	}
}

// enforced sends usage that the plan enforces.
func (k *limitsLoad) enforced(ctx context.Context, rng *rand.Rand) {
	x := k.x
	c := &client{w: x.deployment, tenant: x.tenants[rng.IntN(len(x.tenants))], to: func() string { return x.members[int(x.requestCount.Add(1))%len(x.members)].clients.url() }}
	batch := events(k.name("enforced"), 1+rng.IntN(20), "requests")
	for n := range batch {
		batch[n].Amount = 1 + rng.Int64N(90)
	}
	if verdicts := c.send(ctx, batch); verdicts != nil {
		for _, v := range verdicts {
			k.count("enforced usage " + v.Status)
		}
	}
}

// send sends a consumption or a commit until it has an answer.
func (k *limitsLoad) send(ctx context.Context, a *ask) (status int, body []byte) {
	for tries := 1; ; tries++ {
		at := k.x.members[int(k.x.requestCount.Add(1))%len(k.x.members)]
		a.tenant.asked.sending([]event{a.event})
		status, body, err := k.x.call(ctx, k.keys[a.tenant], http.MethodPost, at.clients.url()+"/api/v1/entitlements/tokens"+a.path, a.body)
		if err == nil && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
			k.answered(a, status, body)
			if status != http.StatusOK && tries > 1 { // an instance may still hold an earlier attempt
				k.leave(a)
			}
			return status, body
		}
		if ctx.Err() != nil {
			k.leave(a)
			return 0, nil
		}
		k.x.sleep(50 * time.Millisecond)
	}
}

// leave notes a request whose outcome is open.
func (k *limitsLoad) leave(a *ask) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open = append(k.open, a)
}

// answered records an answer in the ledger of requests about limits.
func (k *limitsLoad) answered(a *ask, status int, body []byte) {
	var r struct {
		Code, Position   string
		Used, Held       int64
		Limit, Remaining *int64
	}
	if err := json.Unmarshal(body, &r); err != nil || status >= 500 || status == http.StatusBadRequest {
		k.x.t.Errorf("%s of %s was answered with %d %s", a.path, a.event.EventID, status, body)
		return
	}
	v := verdict{EventID: a.event.EventID, Status: "rejected", Code: r.Code, Position: r.Position}
	if status == http.StatusOK {
		v.Status = "accepted"
		k.mu.Lock()
		first := k.answers[a.tenant.id+a.event.EventID]
		if first == nil {
			k.answers[a.tenant.id+a.event.EventID] = body
			k.repeat = append(k.repeat, a)
		} else {
			v.Status = "duplicate"
		}
		k.mu.Unlock()
		if first != nil && !bytes.Equal(first, body) {
			k.x.t.Errorf("%s of %s was answered with %s, and again with %s", a.path, a.event.EventID, first, body)
		}
		if a.path == "/consume" && (r.Limit == nil || r.Used+r.Held > *r.Limit) || r.Remaining == nil || *r.Remaining < 0 {
			k.x.t.Errorf("%s of %s was granted beyond the limit: %s", a.path, a.event.EventID, body)
		}
	}
	if err := a.tenant.asked.answered([]event{a.event}, []verdict{v}); err != nil {
		k.x.t.Errorf("%s of %s: %v", a.path, a.event.EventID, err)
	}
	k.count("requests to use " + v.Status)
}

// sendAgain repeats an answered request, which gets its first answer.
func (k *limitsLoad) sendAgain(ctx context.Context, rng *rand.Rand) {
	k.mu.Lock()
	var a *ask
	if len(k.repeat) > 0 {
		a = k.repeat[rng.IntN(len(k.repeat))]
	}
	k.mu.Unlock()
	if a == nil {
		return
	}
	if status, body := k.send(ctx, a); status != 0 && status != http.StatusOK {
		k.x.t.Errorf("%s of %s was granted, and is now answered with %d %s", a.path, a.event.EventID, status, body)
	}
}

// hold holds an amount, some for a second only: these expire unless they are ended at once.
func (k *limitsLoad) hold(ctx context.Context, rng *rand.Rand, tenant *tenant) {
	h := &hold{k.name("held"), 1 + rng.Int64N(80)}
	status, body := k.x.attempt(ctx, k.keys[tenant], http.MethodPost, "/api/v1/entitlements/tokens/reservations",
		object{"reservationId": h.id, "amount": h.amount, "ttlSeconds": []int{1, 3, k.longest}[rng.IntN(3)]}, nil)
	k.ended("holds", status, body, http.StatusConflict)
	if status == http.StatusCreated || status == http.StatusOK {
		k.mu.Lock()
		k.held[tenant] = append(k.held[tenant], h)
		k.mu.Unlock()
	}
}

func (k *limitsLoad) ended(what string, status int, body []byte, refusals ...int) {
	switch {
	case status == 0:
	case status == http.StatusOK || status == http.StatusCreated:
		k.count(what + " granted")
	case slices.Contains(refusals, status):
		k.count(what + " refused")
	default:
		k.x.t.Errorf("%s: answered with %d %s", what, status, body)
	}
}

// end ends a reservation, extends it, or leaves it until its time is over.
func (k *limitsLoad) end(ctx context.Context, rng *rand.Rand, tenant *tenant) {
	k.mu.Lock()
	list := k.held[tenant]
	if len(list) == 0 {
		k.mu.Unlock()
		return
	}
	n := rng.IntN(len(list))
	h := list[n]
	choice := rng.IntN(10)
	if choice > 1 {
		k.held[tenant] = slices.Delete(list, n, n+1)
	}
	k.mu.Unlock()
	path := "/reservations/" + h.id
	switch {
	case choice < 2:
		status, body := k.x.attempt(ctx, k.keys[tenant], http.MethodPost, "/api/v1/entitlements/tokens"+path+"/extend", object{"ttlSeconds": 2}, nil)
		k.ended("extensions", status, body, http.StatusConflict)
	case choice < 4:
		status, body := k.x.attempt(ctx, k.keys[tenant], http.MethodDelete, "/api/v1/entitlements/tokens"+path, nil, nil)
		k.ended("releases", status, body, http.StatusConflict)
	case choice < 9:
		id, amount := k.name("committed"), 1+rng.Int64N(h.amount)
		in := object{"eventId": id}
		if choice == 8 {
			amount, in["overage"] = h.amount+1+rng.Int64N(20), "record"
		}
		in["amount"] = amount
		k.send(ctx, &ask{tenant, path + "/commit", event{EventID: id, Feature: "tokens", Amount: amount}, in})
	default:
		k.count("reservations abandoned")
	}
}

// changeLimits raises the limits of a tenant, or lowers them below the used or held amount.
func (k *limitsLoad) changeLimits(ctx context.Context, rng *rand.Rand) {
	x := k.x
	tenant := x.tenants[rng.IntN(len(x.tenants)-1)] // the last one's subscription changes
	var accounts struct {
		Data []struct {
			Feature    string
			Used, Held int64
		}
	}
	if status, body := x.attempt(ctx, x.operator, http.MethodGet, "/api/v1/quota/accounts?tenantId="+tenant.id, nil, &accounts); status != http.StatusOK {
		k.ended("reads of accounts", status, body)
		return
	}
	limits := map[string]int64{"tokens": firstLimit, "requests": firstLimit}
	for _, a := range accounts.Data {
		limits[a.Feature] = max(0, a.Used+a.Held+rng.Int64N(2000)-300)
	}
	if status, body := x.attempt(ctx, x.operator, http.MethodPut, "/api/v1/plans/all", planOfAll(limited(limits["tokens"], limits["requests"])...), nil); status != http.StatusOK {
		k.ended("changes of the plan", status, body)
		return
	}
	status, body := x.attempt(ctx, x.operator, http.MethodPatch, "/api/v1/tenants/"+tenant.id+"/subscriptions/"+tenant.subscription, object{"plan": "all"}, nil)
	k.ended("changes of limits", status, body)
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

// settle sends the requests again that have no answer, and refused ones that an instance may still grant by an earlier attempt.
func (k *limitsLoad) settle(ctx context.Context) string {
	open := k.open
	for _, a := range open {
		if status, _ := k.send(ctx, a); status == 0 {
			k.x.t.Fatalf("%s of %s has no answer", a.path, a.event.EventID)
		}
	}
	return fmt.Sprintf("%d requests", len(open))
}

// awaitExpired waits until no reservation is held. One that expired later would change the figures that are compared next.
func (k *limitsLoad) awaitExpired() string {
	held, start := 0, time.Now()
	if !k.x.becomesTrue(patience, func(ctx context.Context) bool {
		return k.x.sql.QueryRow(ctx, `SELECT count(*) FROM reservations WHERE state = 'HELD'`).Scan(&held) == nil && held == 0
	}) {
		k.x.t.Errorf("%d reservations are still held", held)
	}
	return "after " + time.Since(start).Round(time.Millisecond).String()
}

// watch compares the accounts with the log. A sample that the database does not answer is left out.
func (k *limitsLoad) watch(ctx context.Context, _ *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_ = k.sample(ctx)
	k.x.sleep(300 * time.Millisecond)
}

// sample compares the accounts with the log in one snapshot.
func (k *limitsLoad) sample(ctx context.Context) error {
	var faults []string
	err := pgx.BeginTxFunc(ctx, k.x.sql, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		faults, err = k.fold.sample(ctx, tx)
		return err
	})
	for _, fault := range faults[:min(len(faults), 10)] {
		k.x.t.Errorf("accounts: %s", fault)
	}
	return err
}

// check compares the accounts with the log once more.
func (k *limitsLoad) check() string {
	if err := k.sample(k.x.t.Context()); err != nil {
		k.x.t.Errorf("accounts: %v", err)
	}
	return fmt.Sprintf("%d samples, %d grants and ends, reservations %v; %v", k.fold.samples, k.fold.grants, k.fold.ended, k.counts)
}
