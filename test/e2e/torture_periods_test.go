package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

// periodsLoad closes and reopens the present month of all tenants, and decides on adjustments, beside all other load. It remembers each
// snapshot and each decision that it was told of. They must not change.
type periodsLoad struct {
	x       *torture
	tenants []*tenant
	month   string

	mu        sync.Mutex
	snapshots map[string]string // figures by path
	decided   map[string]string // states by adjustment
}

func newPeriodsLoad(x *torture) *periodsLoad {
	return &periodsLoad{x: x, month: time.Now().UTC().Format("2006-01"), snapshots: map[string]string{}, decided: map[string]string{}}
}

// adjustLate sets the policy of tenants: late usage is an adjustment, so that no other load is refused. Only the restless tenant refuses
// it, whose usage may be refused anyway.
func (k *periodsLoad) adjustLate(at *instance, tenants []*tenant) {
	k.tenants = tenants
	for _, tenant := range tenants {
		if tenant != k.x.restless {
			k.x.w.ask(k.x.w.operator, http.MethodPatch, at, "/api/v1/tenants/"+tenant.id, object{"lateUsage": "ADJUST"}, nil, http.StatusOK)
		}
	}
}

// tortured has members of the answer about a period.
type tortured struct {
	State, FiguresHash string
	Snapshot           *int
	Lines              []struct {
		Feature, SubscriptionID  string
		Frozen, FrozenEventCount json.Number
		Unreconciled             *json.Number
	}
}

func (k *periodsLoad) pathOf(tenant *tenant) string {
	return "/api/v1/tenants/" + tenant.id + "/periods/" + k.month
}

// requests does one operation of a client.
func (k *periodsLoad) requests(ctx context.Context, rng *rand.Rand) {
	tenant := k.tenants[rng.IntN(len(k.tenants))]
	switch n := rng.IntN(10); {
	case n < 3:
		in := object{"early": true}
		if rng.IntN(3) == 0 {
			in["despite"] = []string{"dead_letters", "rebuilds"}
		}
		k.x.operate(ctx, workClosed, k.pathOf(tenant)+"/close", in, nil)
	case n == 3:
		k.x.operate(ctx, workReopened, k.pathOf(tenant)+"/reopen", object{}, nil)
	case n < 6:
		k.read(ctx, k.pathOf(tenant), 0)
	case n == 6:
		k.mu.Lock()
		known := slices.Sorted(maps.Keys(k.snapshots))
		k.mu.Unlock()
		if len(known) > 0 {
			k.reread(ctx, known[rng.IntN(len(known))])
		}
	default:
		k.decide(ctx, rng, tenant)
	}
}

// read reads a period and compares its frozen figures with earlier answers.
func (k *periodsLoad) read(ctx context.Context, path string, snapshot int) (p tortured, ok bool) {
	since := k.x.work.doubtful.Load()
	if !k.x.look(ctx, k.x.w.operator, fmt.Sprint(path, "?limit=500&snapshot=", snapshot), &p) || p.Snapshot == nil || p.FiguresHash == "" ||
		!k.x.work.certain(since) {
		return p, p.State != ""
	}
	text := ""
	for _, l := range p.Lines {
		if l.Frozen != "0" || l.FrozenEventCount != "0" {
			text += fmt.Sprintf("%s %s: %s in %s; ", l.Feature, l.SubscriptionID, l.Frozen, l.FrozenEventCount)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	name := fmt.Sprint(path, " ", *p.Snapshot)
	if was, known := k.snapshots[name]; known && was != text {
		k.x.t.Errorf("snapshot %s was %s, and is %s", name, was, text)
	}
	k.snapshots[name] = text
	return p, true
}

// reread reads an earlier snapshot again.
func (k *periodsLoad) reread(ctx context.Context, name string) {
	var path string
	var n int
	_, _ = fmt.Sscan(name, &path, &n)
	if p, ok := k.read(ctx, path, n); ok && (p.Snapshot == nil || *p.Snapshot != n) {
		k.x.t.Errorf("snapshot %s is no longer there: %+v", name, p)
	}
}

// decide decides on adjustments of a tenant: one, or all up to one. Each state that it has been told of must stay.
func (k *periodsLoad) decide(ctx context.Context, rng *rand.Rand, tenant *tenant) {
	x := k.x
	var page struct {
		Data []struct{ ID, State, Position string }
	}
	since := x.work.doubtful.Load()
	if !x.look(ctx, x.w.operator, "/api/v1/adjustments?limit=200&tenantId="+tenant.id+[]string{"", "&state=PENDING"}[rng.IntN(2)], &page) {
		return
	}
	var pending []int
	for n, a := range page.Data {
		if x.work.certain(since) {
			k.remember(a.ID, a.State)
		}
		if a.State == "PENDING" {
			pending = append(pending, n)
		}
	}
	if len(pending) == 0 {
		return
	}
	a := page.Data[pending[rng.IntN(len(pending))]]
	if choice := rng.IntN(3); choice == 2 {
		in := object{"tenantId": tenant.id, "periodKey": k.month, "upTo": a.Position, "decision": "approve"}
		x.operate(ctx, "bulk decisions", "/api/v1/adjustments/decide", in, nil)
	} else if x.operate(ctx, workDecided, "/api/v1/adjustments/"+a.ID+[]string{"/approve", "/waive"}[choice], object{}, nil) {
		k.remember(a.ID, []string{"APPROVED", "WAIVED"}[choice])
	}
}

// remember compares the state of an adjustment with the one that was answered before; a decision is final. Answers may overtake one
// another, so PENDING is no contradiction.
func (k *periodsLoad) remember(id, state string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if was := k.decided[id]; state != "PENDING" && was != "" && was != state {
		k.x.t.Errorf("the adjustment %s was %s, and is %s", id, was, state)
	}
	if state != "PENDING" {
		k.decided[id] = state
	}
}

// settle waits until no period is being closed, and all closed ones are reconciled, and reads all snapshots again.
func (k *periodsLoad) settle(ctx context.Context) {
	k.x.abandonRebuilds(ctx) // a close waits for them
	within(k.x.t, "closes end, and closed periods are reconciled", func(context.Context) (bool, string) {
		state := ""
		for _, tenant := range k.tenants {
			p, _ := k.read(ctx, k.pathOf(tenant), 0)
			if p.State == "CLOSING" {
				state += tenant.id + " is CLOSING; "
			}
			for _, l := range p.Lines {
				if p.State == "CLOSED" && l.Unreconciled != nil && *l.Unreconciled != "0" {
					state += fmt.Sprintf("%s of %s has unreconciled %s; ", l.Feature, tenant.id, *l.Unreconciled)
				}
			}
		}
		return state == "", state
	})
	for _, name := range slices.Sorted(maps.Keys(k.snapshots)) {
		k.reread(ctx, name)
	}
}
