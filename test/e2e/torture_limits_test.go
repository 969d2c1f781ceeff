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

	"github.com/meterplex/meterplex/internal/must"
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

// limitsLoad sends requests about limits beside the other load. meterplex verify proves the accounts.
type limitsLoad struct {
	x    *torture
	keys map[*tenant]string

	mu      sync.Mutex
	made    int
	granted []*grant            // consumptions and commits, to be sent again
	held    map[*tenant][]*hold // that may still be held
}

// grant is a consumption or a commit with its first answer.
type grant struct {
	tenant *tenant
	path   string
	body   object
	answer []byte
}

// hold is a reservation that was held.
type hold struct {
	id     string
	amount int64
}

func newLimitsLoad(x *torture) *limitsLoad {
	return &limitsLoad{x: x, keys: map[*tenant]string{}, held: map[*tenant][]*hold{}}
}

// name returns an id that is new in the run.
func (k *limitsLoad) name(kind string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made++
	return fmt.Sprintf("%s-%d", kind, k.made)
}

// requests does some operations for tenants.
func (k *limitsLoad) requests(ctx context.Context, rng *rand.Rand) {
	for range 5 {
		tenant := k.x.w.tenants[rng.IntN(len(k.x.w.tenants))]
		switch n := rng.IntN(10); {
		case n < 3:
			k.consume(ctx, &grant{tenant: tenant, path: "/consume",
				body: object{"eventId": k.name("consumed"), "amount": 1 + rng.Int64N(60)}})
		case n == 3:
			k.mu.Lock()
			granted := slices.Clone(k.granted)
			k.mu.Unlock()
			if len(granted) > 0 {
				k.consume(ctx, granted[rng.IntN(len(granted))])
			}
		case n < 7:
			k.hold(ctx, rng, tenant)
		default:
			k.end(ctx, rng, tenant)
		}
	}
}

// consume sends a consumption or a commit until it has an answer. A granted one gets its first answer again, byte for byte.
func (k *limitsLoad) consume(ctx context.Context, g *grant) {
	x := k.x
	status, body := x.attempt(ctx, k.keys[g.tenant], http.MethodPost, "/api/v1/entitlements/tokens"+g.path, g.body, nil)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case status == 0 || g.answer == nil && status > http.StatusBadRequest: // the restless tenant has no subscription at times
	case status != http.StatusOK:
		x.t.Errorf("%s of %v, granted before: %s, was answered with %d %s", g.path, g.body, g.answer, status, body)
	case g.answer == nil:
		g.answer = body
		k.granted = append(k.granted, g)
		x.did(workConsumed)
		var r struct {
			Used, Held       int64
			Limit, Remaining *int64
		}
		if err := json.Unmarshal(body, &r); err != nil || g.path == "/consume" && (r.Limit == nil || r.Used+r.Held > *r.Limit) ||
			r.Remaining == nil || *r.Remaining < 0 {
			x.t.Errorf("%s of %v was granted beyond the limit: %s", g.path, g.body, body)
		}
	case !bytes.Equal(g.answer, body):
		x.t.Errorf("%s of %v was answered with %s, and again with %s", g.path, g.body, g.answer, body)
	}
}

// hold holds an amount, some for a second only: these expire unless they are ended at once.
func (k *limitsLoad) hold(ctx context.Context, rng *rand.Rand, tenant *tenant) {
	longest := 5
	if k.x.long {
		longest = 30
	}
	h := &hold{k.name("held"), 1 + rng.Int64N(80)}
	if k.use(ctx, workHeld, tenant, http.MethodPost, "", object{"reservationId": h.id, "amount": h.amount,
		"ttlSeconds": []int{1, 3, longest}[rng.IntN(3)]}) {
		k.mu.Lock()
		k.held[tenant] = append(k.held[tenant], h)
		k.mu.Unlock()
	}
}

// use sends a request about reservations.
func (k *limitsLoad) use(ctx context.Context, kind string, tenant *tenant, method, path string, in any) bool {
	return k.x.do(ctx, kind, k.keys[tenant], method, "/api/v1/entitlements/tokens/reservations"+path, in, nil)
}

// end ends a reservation, extends it, or leaves it until its time is over.
func (k *limitsLoad) end(ctx context.Context, rng *rand.Rand, tenant *tenant) {
	k.mu.Lock()
	list := k.held[tenant]
	if len(list) == 0 {
		k.mu.Unlock()
		return
	}
	n, choice := rng.IntN(len(list)), rng.IntN(10)
	h := list[n]
	if choice > 1 {
		k.held[tenant] = slices.Delete(list, n, n+1)
	}
	k.mu.Unlock()
	switch {
	case choice < 2:
		k.use(ctx, "amounts extended", tenant, http.MethodPost, "/"+h.id+"/extend", object{"ttlSeconds": 2})
	case choice < 4:
		k.use(ctx, "amounts released", tenant, http.MethodDelete, "/"+h.id, nil)
	case choice < 9:
		in := object{"eventId": k.name("committed"), "amount": 1 + rng.Int64N(h.amount)}
		if choice == 8 {
			in["amount"], in["overage"] = h.amount+1+rng.Int64N(20), "record"
		}
		k.consume(ctx, &grant{tenant: tenant, path: "/reservations/" + h.id + "/commit", body: in})
	}
}

// enforced sends usage that the plan enforces.
func (k *limitsLoad) enforced(ctx context.Context, rng *rand.Rand) {
	c := &client{w: k.x.w, tenant: k.x.w.tenants[rng.IntN(len(k.x.w.tenants))], to: k.x.next}
	batch := events(k.name("enforced"), 1+rng.IntN(20), "requests")
	for n := range batch {
		batch[n].Amount = 1 + rng.Int64N(90)
	}
	c.send(ctx, batch)
}

// changeLimits raises the limits of a tenant, or lowers them below the used or held amount.
func (k *limitsLoad) changeLimits(ctx context.Context, rng *rand.Rand) {
	x := k.x
	tenant := x.w.tenants[rng.IntN(len(x.w.tenants)-1)] // the last one's subscription changes
	var accounts struct {
		Data []struct {
			Feature    string
			Used, Held int64
		}
	}
	if !x.look(ctx, x.w.operator, "/api/v1/quota/accounts?tenantId="+tenant.id, &accounts) {
		return
	}
	limits := map[string]int64{"tokens": firstLimit, "requests": firstLimit}
	for _, a := range accounts.Data {
		limits[a.Feature] = max(0, a.Used+a.Held+rng.Int64N(2000)-300)
	}
	if x.do(ctx, "plans changed", x.w.operator, http.MethodPut, "/api/v1/plans/all",
		planOfAll(limited(limits["tokens"], limits["requests"])...), nil) {
		x.do(ctx, workLimits, x.w.operator, http.MethodPatch, "/api/v1/tenants/"+tenant.id+"/subscriptions/"+tenant.subscription,
			object{"plan": "all"}, nil)
	}
	x.sleep(time.Second)
}

// check checks that each granted consumption and commit is in the log at the position of its answer.
func (k *limitsLoad) check() {
	x := k.x
	found, err := x.w.sql.Query(x.t.Context(),
		`SELECT tenant_id || '/' || (l.payload ->> 'eventId'), partition || '-' || position FROM event_log_rows l WHERE subject = 8`)
	must.OK(x.t, err)
	at, id, position := map[string]string{}, "", ""
	_, err = pgx.ForEachRow(found, []any{&id, &position}, func() error {
		at[id] = position
		return nil
	})
	must.OK(x.t, err)
	for _, g := range k.granted {
		if is := at[fmt.Sprint(g.tenant.id, "/", g.body["eventId"])]; is == "" || !bytes.Contains(g.answer, []byte(`"`+is+`"`)) {
			x.t.Errorf("%s of %v was answered with %s, in the log it is at %q", g.path, g.body, g.answer, is)
		}
	}
}
