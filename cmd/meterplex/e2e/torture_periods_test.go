package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// periodsLoad closes and reopens the present month of all tenants, and decides on adjustments, beside all other load. It remembers each snapshot and
// each decision that it was told of. They must not change.
type periodsLoad struct {
	x  *torture
	mu sync.Mutex

	tenants   []*tenant
	month     string
	snapshots map[string]string // figures by tenant and snapshot
	decided   map[string]string // states by adjustment
	counts    map[string]int
	closed    atomic.Int64
	reopened  atomic.Int64
	decisions atomic.Int64
}

func newPeriodsLoad(x *torture) *periodsLoad {
	return &periodsLoad{x: x, snapshots: map[string]string{}, decided: map[string]string{}, counts: map[string]int{}}
}

// adjustLate sets the policy of tenants: late usage is an adjustment, so that no other load is refused. Only the restless tenant refuses it, whose
// usage may be refused anyway.
func (k *periodsLoad) adjustLate(at *instance, tenants []*tenant) {
	k.month = time.Now().UTC().Format("2006-01")
	for _, tenant := range tenants {
		if k.tenants = append(k.tenants, tenant); tenant != k.x.restless {
			k.x.ask(k.x.operator, http.MethodPatch, at, "/api/v1/tenants/"+tenant.id, object{"lateUsage": "ADJUST"}, nil, http.StatusOK)
		}
	}
}

func (k *periodsLoad) count(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[what]++
}

// tortured has members of the answer about a period.
type tortured struct {
	State, CutPosition, FiguresHash, Logic string
	Snapshot                               *int
	Lines                                  []struct {
		Feature, SubscriptionID  string
		Frozen, FrozenEventCount json.Number
		Unreconciled             *json.Number
	}
	NextCursor *string
}

// requests does one operation of a client.
func (k *periodsLoad) requests(ctx context.Context, rng *rand.Rand) {
	tenant := k.tenants[rng.IntN(len(k.tenants))]
	path := "/api/v1/tenants/" + tenant.id + "/periods/" + k.month
	switch n := rng.IntN(10); {
	case n < 3:
		in := object{"reason": "torture", "early": true}
		if rng.IntN(3) == 0 {
			in["despite"] = []string{"dead_letters", "rebuilds"}
		}
		status, body := k.x.attempt(ctx, k.x.operator, http.MethodPost, path+"/close", in, nil, "Idempotency-Key", uuid.NewString())
		k.answered("close", status, body, http.StatusAccepted, http.StatusOK)
	case n == 3:
		status, body := k.x.attempt(ctx, k.x.operator, http.MethodPost, path+"/reopen", object{"reason": "torture"}, nil, "Idempotency-Key", uuid.NewString())
		if k.answered("reopen", status, body, http.StatusOK); status == http.StatusOK {
			k.reopened.Add(1)
		}
	case n < 6:
		k.read(ctx, tenant, 0)
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

// answered counts an answer, which is a success or a conflict.
func (k *periodsLoad) answered(what string, status int, body []byte, want ...int) {
	switch {
	case status == 0:
	case slices.Contains(want, status):
		k.count(what)
	case status == http.StatusConflict:
		k.count(what + " refused")
	default:
		k.x.t.Errorf("%s of a period was answered with %d %s", what, status, body)
	}
}

// read reads a period and compares its frozen figures with earlier answers and with their hash. It returns the period, and whether there was an answer.
func (k *periodsLoad) read(ctx context.Context, tenant *tenant, snapshot int) (p tortured, ok bool) {
	path := fmt.Sprintf("/api/v1/tenants/%s/periods/%s?limit=500&snapshot=%d", tenant.id, k.month, snapshot)
	since := k.x.work.doubtful.Load()
	status, body := k.x.attempt(ctx, k.x.operator, http.MethodGet, path, nil, &p)
	if status == 0 || status == http.StatusNotFound {
		return p, false
	}
	if status != http.StatusOK || p.NextCursor != nil {
		k.x.t.Errorf("a period was answered with %d %s", status, body)
		return p, false
	}
	if p.Snapshot == nil || p.FiguresHash == "" {
		return p, true
	}
	var lines []string
	for _, l := range p.Lines {
		if l.Frozen != "0" || l.FrozenEventCount != "0" {
			lines = append(lines, fmt.Sprintf(`{"amount":"%s","eventCount":%s,"feature":%q,"subscriptionId":%q}`, l.Frozen, l.FrozenEventCount, l.Feature, l.SubscriptionID))
		}
	}
	doc := fmt.Appendf(nil, `{"cut":%q,"lines":[%s],"logic":%q,"periodKey":%q,"snapshot":%d,"tenantId":%q}`, p.CutPosition, strings.Join(lines, ","), p.Logic, k.month, *p.Snapshot, tenant.id)
	if hash := fmt.Sprintf("%x", sha256.Sum256(doc)); hash != p.FiguresHash {
		k.x.t.Errorf("snapshot %d of %s has the hash %s, %s has %s", *p.Snapshot, tenant.id, p.FiguresHash, doc, hash)
	}
	if !k.x.work.certain(since) {
		return p, true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	name := fmt.Sprint(tenant.id, " ", *p.Snapshot)
	if was, known := k.snapshots[name]; known && was != string(doc) {
		k.x.t.Errorf("snapshot %s was %s, and is %s", name, was, doc)
	} else if !known {
		k.snapshots[name] = string(doc)
		k.closed.Add(1)
	}
	return p, true
}

// reread reads an earlier snapshot again.
func (k *periodsLoad) reread(ctx context.Context, name string) {
	var id string
	var n int
	_, _ = fmt.Sscan(name, &id, &n)
	for _, tenant := range k.tenants {
		if tenant.id == id {
			if p, ok := k.read(ctx, tenant, n); ok && (p.Snapshot == nil || *p.Snapshot != n) {
				k.x.t.Errorf("snapshot %s is no longer there: %+v", name, p)
			}
		}
	}
}

// decide decides on adjustments of a tenant: one, or all up to one. Each state that it has been told of must stay.
func (k *periodsLoad) decide(ctx context.Context, rng *rand.Rand, tenant *tenant) {
	var page struct {
		Data []struct{ ID, State, Position string }
	}
	since := k.x.work.doubtful.Load()
	list := "/api/v1/adjustments?limit=200&tenantId=" + tenant.id + []string{"", "&state=PENDING"}[rng.IntN(2)]
	if status, body := k.x.attempt(ctx, k.x.operator, http.MethodGet, list, nil, &page); status != http.StatusOK {
		k.answered("list of adjustments", status, body)
		return
	}
	var pending []int
	for n, a := range page.Data {
		if k.x.work.certain(since) {
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
	switch choice := rng.IntN(3); choice {
	case 2:
		status, body := k.x.attempt(ctx, k.x.operator, http.MethodPost, "/api/v1/adjustments/decide",
			object{"tenantId": tenant.id, "periodKey": k.month, "upTo": a.Position, "decision": "approve", "reason": "torture"}, nil, "Idempotency-Key", uuid.NewString())
		k.answered("bulk decision", status, body, http.StatusOK)
	default:
		status, body := k.x.attempt(ctx, k.x.operator, http.MethodPost, "/api/v1/adjustments/"+a.ID+[]string{"/approve", "/waive"}[choice], object{"reason": "torture"}, nil, "Idempotency-Key", uuid.NewString())
		if k.answered("decision", status, body, http.StatusOK); status == http.StatusOK {
			k.remember(a.ID, []string{"APPROVED", "WAIVED"}[choice])
			k.decisions.Add(1)
		}
	}
}

// remember compares the state of an adjustment with the one that was answered before; a decision is final. Answers may overtake one another, so that
// PENDING is no contradiction.
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

// settle waits until no period is being closed, and all closed ones are reconciled.
func (k *periodsLoad) settle(ctx context.Context) string {
	k.x.abandonRebuilds(ctx) // a close waits for them
	state := ""
	if !k.x.becomesTrue(2*time.Minute, func(context.Context) bool {
		state = ""
		for _, tenant := range k.tenants {
			p, ok := k.read(ctx, tenant, 0)
			if !ok || p.State == "CLOSING" {
				state += fmt.Sprintf("%s is %s; ", tenant.id, p.State)
			}
			for _, l := range p.Lines {
				if p.State == "CLOSED" && l.Unreconciled != nil && *l.Unreconciled != "0" {
					state += fmt.Sprintf("%s of %s has unreconciled %s; ", l.Feature, tenant.id, *l.Unreconciled)
				}
			}
		}
		return state == ""
	}) {
		k.x.t.Errorf("periods do not settle: %s", state)
	}
	for _, name := range slices.Sorted(maps.Keys(k.snapshots)) {
		k.reread(ctx, name)
	}
	return fmt.Sprintf("%d snapshots read again, %d states of adjustments; %v", len(k.snapshots), len(k.decided), k.counts)
}
