package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// backgroundWork runs beside ingest: reads, rebuilds, retries of dead letters, changes of the
// catalogue, and usage sent as messages.
type backgroundWork struct {
	x           *torture
	rebuild     rebuild // the undecided rebuild
	live        bool    // it was promoted
	outside     *kgo.Client
	limits      *limitsLoad
	corrections *correctionsLoad
	periods     *periodsLoad
	endings     *endingsLoad
	sources     map[*tenant]*source
	known       []figures   // answers at a position, to be read again
	rest        atomic.Bool // no changes: the service recovers
	// doubtful is odd while reads may see COMMITs that a failover loses: a crash, or a cancelled wait, shows them before the standby has them.
	doubtful atomic.Int64
	mu       sync.Mutex

	between, asOf, explained, checks, rebuilds, promoted, rolledBack, abandoned, scoped, retried, bulks, renewed, changed, replays, messages, poison atomic.Int64
}

// figures are a tenant's sums by feature at a position.
type figures struct {
	tenant *tenant
	at     string
	sums   map[string]int64
}

func newBackgroundWork(x *torture) *backgroundWork {
	return &backgroundWork{x: x, sources: map[*tenant]*source{}, limits: newLimitsLoad(x), corrections: newCorrectionsLoad(x), periods: newPeriodsLoad(x), endings: newEndingsLoad(x)}
}

// begin starts the background work. It returns a function that stops it. While the service recovers, it makes no changes: each is an event
// that the pipe carries, so that the service would hardly ever be at the end of its log.
func (k *backgroundWork) begin(seed uint64) func() {
	ctx, cancel := context.WithCancel(k.x.t.Context())
	k.rest.Store(false)
	var wait sync.WaitGroup
	reads := []func(context.Context, *rand.Rand){k.read, k.read, k.identity, k.limits.watch}
	changes := []func(context.Context, *rand.Rand){k.decideRebuild, k.retry, k.replaceSubscription, k.message, k.limits.requests, k.limits.requests, k.limits.requests,
		k.limits.enforced, k.limits.changeLimits, k.corrections.requests, k.periods.requests, k.periods.requests, k.endings.requests}
	for n, do := range slices.Concat(reads, changes) {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		wait.Go(func() {
			for ctx.Err() == nil {
				if n < len(reads) || !k.rest.Load() {
					do(ctx, rng)
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(50+rng.IntN(200)) * time.Millisecond):
				}
			}
		})
	}
	return func() {
		cancel()
		wait.Wait()
	}
}

type aggregates struct {
	Data []struct {
		Feature, PeriodKey string
		Amount             int64
	}
	AsOfPosition string
}

func (a *aggregates) sums() map[string]int64 {
	sums := map[string]int64{}
	for _, d := range a.Data {
		sums[d.Feature] += d.Amount
	}
	return sums
}

// read checks that figures lie between the acknowledged and the attempted sums, that earlier
// figures are unchanged as of their position, and that explanations add up.
func (k *backgroundWork) read(ctx context.Context, rng *rand.Rand) {
	x := k.x
	tenant := x.tenants[rng.IntN(len(x.tenants)-1)] // the last one's usage may be rejected
	since := k.doubtful.Load()
	low, at := tenant.ledger.sumsAcknowledged()
	if at == "" {
		return
	}
	var response aggregates
	status, _ := x.attempt(ctx, tenant.key, http.MethodGet, "/api/v1/usage/aggregates?limit=500&minPosition="+at, nil, &response, "Prefer", "wait=5")
	if status != http.StatusOK {
		k.unexpected(ctx, "figures", status)
		return
	}
	high, sums := tenant.ledger.sumsAttempted(), response.sums()
	k.between.Add(1)
	for _, feature := range features() {
		if sums[feature] < low[feature] || sums[feature] > high[feature] {
			x.t.Errorf("figures of %s at %s: %s is %d, acknowledged before %d, attempted so far %d", tenant.id, response.AsOfPosition, feature, sums[feature], low[feature], high[feature])
		}
	}
	if k.certain(since) {
		k.saveFigures(rng, figures{tenant, response.AsOfPosition, sums})
	}
	k.check(ctx, tenant, low, at)
	k.recheckFigures(ctx, rng)
	if len(response.Data) > 0 {
		k.explain(ctx, tenant, response.Data[rng.IntN(len(response.Data))].Feature, response.Data[0].PeriodKey)
	}
}

// identity checks that every accepted event is in exactly one place, at any moment.
func (k *backgroundWork) identity(ctx context.Context, _ *rand.Rand) {
	var response struct {
		Holds bool
		Total identityTerms
	}
	status, body := k.x.attempt(ctx, k.x.operator, http.MethodGet, "/api/v1/system/identity", nil, &response)
	if status != http.StatusOK {
		k.unexpected(ctx, "the identity", status)
	} else if !response.Holds || !response.Total.hold() {
		k.x.t.Errorf("the identity does not hold: %s", body)
	}
}

func (k *backgroundWork) unexpected(ctx context.Context, what string, status int) {
	if status != 0 && ctx.Err() == nil {
		k.x.t.Errorf("%s: answered with %d", what, status)
	}
}

// certain reports whether no failover can have lost what was read since a value of doubtful.
func (k *backgroundWork) certain(since int64) bool {
	return since%2 == 0 && since == k.doubtful.Load()
}

func (k *backgroundWork) saveFigures(rng *rand.Rand, f figures) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.known) < 200 {
		k.known = append(k.known, f)
	} else {
		k.known[rng.IntN(len(k.known))] = f
	}
}

// check compares the use that an entitlement check returns. Usage of the last hour may
// belong to the previous month.
func (k *backgroundWork) check(ctx context.Context, tenant *tenant, low map[string]int64, at string) {
	feature := features()[0]
	var response struct{ Used int64 }
	status, _ := k.x.attempt(ctx, tenant.key, http.MethodGet, "/api/v1/entitlements/"+feature+"/check?minPosition="+at, nil, &response, "Prefer", "wait=5")
	if status != http.StatusOK {
		k.unexpected(ctx, "a check", status)
		return
	}
	k.checks.Add(1)
	high := tenant.ledger.sumsAttempted()
	if newMonth := time.Now().UTC().Add(-2*time.Hour).Month() != time.Now().UTC().Month(); response.Used > high[feature] || !newMonth && response.Used < low[feature] {
		k.x.t.Errorf("an entitlement of %s at %s has %d used, acknowledged before %d, attempted so far %d", tenant.id, at, response.Used, low[feature], high[feature])
	}
}

// recheckFigures reads earlier figures as of their position and compares them.
func (k *backgroundWork) recheckFigures(ctx context.Context, rng *rand.Rand) {
	k.mu.Lock()
	if len(k.known) == 0 {
		k.mu.Unlock()
		return
	}
	f := k.known[rng.IntN(len(k.known))]
	k.mu.Unlock()
	var response aggregates
	status, _ := k.x.attempt(ctx, f.tenant.key, http.MethodGet, "/api/v1/usage/aggregates?limit=500&asOfPosition="+f.at, nil, &response, "Prefer", "wait=5")
	if status != http.StatusOK {
		k.unexpected(ctx, "figures as known", status)
		return
	}
	k.asOf.Add(1)
	if now := response.sums(); fmt.Sprint(now) != fmt.Sprint(f.sums) {
		k.x.t.Errorf("figures of %s as of %s are %v, were %v", f.tenant.id, f.at, now, f.sums)
	}
}

func (k *backgroundWork) explain(ctx context.Context, tenant *tenant, feature, period string) {
	var response struct{ Adds bool }
	status, body := k.x.attempt(ctx, tenant.key, http.MethodGet, "/api/v1/usage/aggregates/explain?limit=1&feature="+feature+"&periodKey="+period, nil, &response)
	if status != http.StatusOK {
		k.unexpected(ctx, "an explanation", status)
		return
	}
	k.explained.Add(1)
	if !response.Adds {
		k.x.t.Errorf("the explanation of %s of %s does not add up: %s", feature, tenant.id, body)
	}
}

// decideRebuild does one operation on a rebuild: begins it, reads its diff, promotes
// it, rolls it back, or abandons it.
func (k *backgroundWork) decideRebuild(ctx context.Context, rng *rand.Rand) {
	x := k.x
	if k.rebuild.ID == "" {
		projection := []string{"usage_aggregates", "usage_aggregates", "dead_letter_events", "entitlement_reads", "usage_series"}[rng.IntN(5)]
		ask := object{"reason": "torture", "workers": 1}
		if rng.IntN(3) == 0 {
			ask["tenantId"] = x.tenants[rng.IntN(len(x.tenants))].id
			if projection == "usage_aggregates" && rng.IntN(2) == 0 {
				ask["periodKey"] = time.Now().UTC().Format("2006-01")
			}
		}
		var r rebuild
		if status, body := x.attempt(ctx, x.operator, http.MethodPost, "/api/v1/projections/"+projection+"/rebuilds", ask, &r, "Idempotency-Key", uuid.NewString()); status == http.StatusAccepted {
			k.rebuild, k.live = r, false
			k.rebuilds.Add(1)
			if ask["tenantId"] != nil {
				k.scoped.Add(1)
			}
		} else if status != 0 && status != http.StatusConflict {
			x.t.Errorf("a rebuild was answered with %d %s", status, body)
		}
		return
	}
	path := "/api/v1/rebuilds/" + k.rebuild.ID
	var r rebuild
	if status, _ := x.attempt(ctx, x.operator, http.MethodGet, path, nil, &r); status != http.StatusOK {
		return
	}
	switch r.State {
	case "FAILED":
		x.t.Errorf("a rebuild failed: %+v", r)
		k.rebuild = rebuild{}
	case "READY", "ROLLED_BACK", "PROMOTED":
		k.decide(ctx, rng, path, r.State)
	case "ABANDONED":
		k.rebuild = rebuild{}
	}
}

func (k *backgroundWork) decide(ctx context.Context, rng *rand.Rand, path, state string) {
	x := k.x
	var diff struct{ Data []json.RawMessage }
	if status, body := x.attempt(ctx, x.operator, http.MethodGet, path+"/diff", nil, &diff); status == http.StatusOK && len(diff.Data) > 0 {
		x.t.Errorf("the rebuilt generation differs: %s", body)
	}
	step, count := "promote", &k.promoted
	switch {
	case state == "PROMOTED" && rng.IntN(2) == 0:
		step, count = "rollback", &k.rolledBack
	case state == "PROMOTED":
		k.rebuild = rebuild{} // it stays promoted
		return
	case rng.IntN(3) == 0:
		step, count = "abandon", &k.abandoned
	}
	status, body := x.attempt(ctx, x.operator, http.MethodPost, path+"/"+step, object{"reason": "torture"}, nil, "Idempotency-Key", uuid.NewString())
	switch status {
	case 0:
	case http.StatusAccepted:
		count.Add(1)
	case http.StatusConflict, http.StatusUnprocessableEntity:
		if step != "abandon" {
			_, _ = x.attempt(ctx, x.operator, http.MethodPost, path+"/abandon", object{"reason": "torture"}, nil)
		}
		k.rebuild = rebuild{} // it has expired, or a later one replaced it
	default:
		x.t.Errorf("%s was answered with %d %s", step, status, body)
	}
}

// retry retries dead letters of the restless tenant, one or in bulk.
func (k *backgroundWork) retry(ctx context.Context, rng *rand.Rand) {
	x := k.x
	if rng.IntN(3) == 0 {
		ask := object{"action": "retry", "reason": "torture", "filter": object{"status": "FAILED", "stage": "VALIDATION", "tenantId": x.restless.id}}
		status, body := x.attempt(ctx, x.operator, http.MethodPost, "/api/v1/dead-letters/bulk", ask, nil, "Idempotency-Key", uuid.NewString())
		k.settled(&k.bulks, "a bulk", status, body)
		return
	}
	var letters struct{ Data []deadLetter }
	if status, _ := x.attempt(ctx, x.operator, http.MethodGet, "/api/v1/dead-letters?stage=VALIDATION&status=FAILED&limit=20", nil, &letters); status != http.StatusOK || len(letters.Data) == 0 {
		return
	}
	one := letters.Data[rng.IntN(len(letters.Data))]
	status, body := x.attempt(ctx, x.operator, http.MethodPost, "/api/v1/dead-letters/"+one.ID+"/retry", object{"reason": "torture"}, nil, "Idempotency-Key", uuid.NewString())
	k.settled(&k.retried, "a retry", status, body)
}

func (k *backgroundWork) settled(count *atomic.Int64, what string, status int, body []byte) {
	switch status {
	case 0, http.StatusConflict, http.StatusUnprocessableEntity, http.StatusNotFound:
	case http.StatusAccepted, http.StatusOK:
		count.Add(1)
	default:
		k.x.t.Errorf("%s was answered with %d %s", what, status, body)
	}
}

// replaceSubscription cancels the restless tenant's subscription and begins another. Usage accepted
// meanwhile by an instance with a stale cache is rejected later.
func (k *backgroundWork) replaceSubscription(ctx context.Context, rng *rand.Rand) {
	x := k.x
	base := "/api/v1/tenants/" + x.restless.id + "/subscriptions"
	var all struct {
		Data []struct{ ID, Status string }
	}
	if status, _ := x.attempt(ctx, x.operator, http.MethodGet, base, nil, &all); status != http.StatusOK {
		return
	}
	for _, s := range all.Data {
		if s.Status == "ACTIVE" {
			x.attempt(ctx, x.operator, http.MethodPatch, base+"/"+s.ID, object{"status": "CANCELLED"}, nil)
		}
	}
	x.sleep(time.Duration(100+rng.IntN(400)) * time.Millisecond)
	if status, _ := x.attempt(ctx, x.operator, http.MethodPost, base, object{"plan": "all", "status": "ACTIVE"}, nil, "Idempotency-Key", uuid.NewString()); status == http.StatusCreated {
		k.renewed.Add(1)
	}
	name := fmt.Sprint("extra-", rng.IntN(50))
	if status, body := x.attempt(ctx, x.operator, http.MethodPut, "/api/v1/features/"+name, object{"name": name, "type": "METERED", "unit": "each"}, nil); status >= 400 {
		x.t.Errorf("a feature was answered with %d %s", status, body)
	} else if status > 0 {
		k.changed.Add(1)
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

// messagePrefix begins the ids of events sent as messages.
const messagePrefix = "message-"

// message sends usage as a message, sometimes an invalid one.
func (k *backgroundWork) message(ctx context.Context, rng *rand.Rand) {
	x := k.x
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if k.outside == nil {
		k.outside = x.kafka(kgo.DefaultProduceTopic(x.prefix+usageCommands), kgo.UnknownTopicRetries(-1))
		x.t.Cleanup(k.outside.Close)
	}
	tenant := x.tenants[rng.IntN(len(x.tenants))]
	s := k.sources[tenant]
	if s == nil {
		s = &source{rng: rng, mix: mix{duplicates: 20, conflicts: 3, rejections: 3, batch: 10}, name: messagePrefix + tenant.id[24:]}
		k.sources[tenant] = s
	}
	s.rng = rng
	value := []byte(`{"eventId":"a","eventId":"b"}`)
	if rng.IntN(20) > 0 {
		batch := s.batch()
		tenant.ledger.sending(batch)
		value, _ = json.Marshal(object{"events": batch})
		k.messages.Add(1)
	} else {
		k.poison.Add(1)
	}
	if err := k.outside.ProduceSync(ctx, &kgo.Record{Key: []byte(tenant.id), Value: value}).FirstErr(); err != nil {
		// A client with metadata of topics that the broker lost must be replaced.
		k.outside.Close()
		k.outside = nil
	}
}
