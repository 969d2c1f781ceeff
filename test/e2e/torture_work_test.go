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

// Kinds of background work.
const (
	workFigures, workAsOf      = "reads of figures between their bounds", "reads of figures as known before"
	workChecks, workExplained  = "entitlement checks between their bounds", "explanations that add up"
	workRebuilds               = "rebuilds begun"
	workRetries, workBulks     = "dead letters retried", "bulk retries"
	workRenewed, workReplays   = "subscriptions renewed", "rewinds and replays"
	workMessages, workPoison   = "messages with usage", "invalid messages"
	workCorrected              = "batches of corrections and retractions"
	workClosed, workReopened   = "closes requested", "periods reopened"
	workDecided                = "adjustments decided"
	workConsumed, workHeld     = "amounts consumed", "amounts held"
	workLimits, workOffboarded = "limits changed", "offboardings"
	messagePrefix              = "message-" // begins the ids of events sent as messages
	correctedFeature           = "output_tokens"
)

// backgroundWork runs beside ingest: reads, rebuilds, retries of dead letters, corrections, changes of the
// catalogue, usage sent as messages, limits, periods and an offboarding.
type backgroundWork struct {
	x       *torture
	rebuild rebuild // the undecided rebuild
	outside *kgo.Client
	limits  *limitsLoad
	periods *periodsLoad
	endings *endingsLoad
	sources map[*tenant]*source
	rest    atomic.Bool // no changes: the service recovers
	// doubtful is odd while reads may see COMMITs that a failover loses: a crash, or a cancelled wait, shows them before the standby has
	// them.
	doubtful atomic.Int64

	mu    sync.Mutex
	known []figures // answers at a position, to be read again

	corrected *tenant         // whose usage is corrected
	batch     []object        // its batch without an answer
	ids       []string        // of its usage, in the order of sending
	retracted map[string]bool // of its usage
}

// figures are a tenant's sums by feature at a position.
type figures struct {
	tenant *tenant
	at     string
	sums   map[string]int64
}

func newBackgroundWork(x *torture) *backgroundWork {
	return &backgroundWork{x: x, sources: map[*tenant]*source{}, retracted: map[string]bool{},
		limits: newLimitsLoad(x), periods: newPeriodsLoad(x), endings: newEndingsLoad(x)}
}

// begin starts the background work. It returns a function that stops it. While the service recovers, it makes no changes: each is an event
// that the pipe carries, so that the service would hardly ever be at the end of its log.
func (k *backgroundWork) begin(seed uint64) func() {
	ctx, cancel := context.WithCancel(k.x.t.Context())
	k.rest.Store(false)
	var wait sync.WaitGroup
	reads := []func(context.Context, *rand.Rand){k.read, k.read, k.x.identity}
	changes := []func(context.Context, *rand.Rand){k.decideRebuild, k.retry, k.replaceSubscription, k.message, k.correct, k.limits.requests,
		k.limits.requests,
		k.limits.requests, k.limits.enforced, k.limits.changeLimits, k.periods.requests, k.periods.requests, k.endings.requests}
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

// identity checks on any instance that every accepted event is in exactly one place, at any moment.
func (x *torture) identity(ctx context.Context, _ *rand.Rand) {
	var answer identityAnswer
	if x.look(ctx, x.w.operator, "/api/v1/system/identity", &answer) && !answer.holds() {
		x.t.Errorf("the identity does not hold: %+v", answer)
	}
}

// read checks that figures and an entitlement lie between the acknowledged and the attempted sums, that earlier
// figures are unchanged as of their position, and that explanations add up.
func (k *backgroundWork) read(ctx context.Context, rng *rand.Rand) {
	x, feature := k.x, features()[0]
	tenant := x.w.tenants[rng.IntN(len(x.w.tenants)-1)] // the last one's usage may be rejected
	since := k.doubtful.Load()
	low, at := tenant.ledger.sumsAcknowledged()
	var response aggregates
	if at == "" || !x.look(ctx, tenant.key, "/api/v1/usage/aggregates?limit=500&minPosition="+at, &response) {
		return
	}
	high, sums := tenant.ledger.sumsAttempted(), response.sums()
	x.did(workFigures)
	for _, f := range features() {
		if sums[f] < low[f] || sums[f] > high[f] {
			x.t.Errorf("figures of %s at %s: %s is %d, acknowledged before %d, attempted so far %d", tenant.id, response.AsOfPosition, f,
				sums[f],
				low[f], high[f])
		}
	}
	k.compareKnown(ctx, rng, since, figures{tenant, response.AsOfPosition, sums})
	var check struct{ Used int64 }
	if x.look(ctx, tenant.key, "/api/v1/entitlements/"+feature+"/check?minPosition="+at, &check) {
		x.did(workChecks)
		high = tenant.ledger.sumsAttempted()
		// Usage of the last hour may belong to the previous month.
		newMonth := time.Now().UTC().Add(-2*time.Hour).Month() != time.Now().UTC().Month()
		if check.Used > high[feature] || !newMonth && check.Used < low[feature] {
			x.t.Errorf("an entitlement of %s at %s has %d used, acknowledged before %d, attempted so far %d", tenant.id, at, check.Used,
				low[feature], high[feature])
		}
	}
	if len(response.Data) == 0 {
		return
	}
	d := response.Data[rng.IntN(len(response.Data))]
	var explained struct{ Adds bool }
	if x.look(ctx, tenant.key, "/api/v1/usage/aggregates/explain?limit=1&feature="+d.Feature+"&periodKey="+d.PeriodKey, &explained) {
		if x.did(workExplained); !explained.Adds {
			x.t.Errorf("the explanation of %+v of %s does not add up", d, tenant.id)
		}
	}
}

// certain reports whether no failover can have lost what was read since a value of doubtful.
func (k *backgroundWork) certain(since int64) bool {
	return since%2 == 0 && since == k.doubtful.Load()
}

// compareKnown keeps new figures, and reads earlier ones again as of their position.
func (k *backgroundWork) compareKnown(ctx context.Context, rng *rand.Rand, since int64, read figures) {
	k.mu.Lock()
	if k.certain(since) && len(k.known) < 200 {
		k.known = append(k.known, read)
	} else if k.certain(since) {
		k.known[rng.IntN(len(k.known))] = read
	}
	known := slices.Clone(k.known)
	k.mu.Unlock()
	if len(known) == 0 {
		return
	}
	f := known[rng.IntN(len(known))]
	var response aggregates
	if !k.x.look(ctx, f.tenant.key, "/api/v1/usage/aggregates?limit=500&asOfPosition="+f.at, &response) {
		return
	}
	k.x.did(workAsOf)
	if now := response.sums(); fmt.Sprint(now) != fmt.Sprint(f.sums) {
		k.x.t.Errorf("figures of %s as of %s are %v, were %v", f.tenant.id, f.at, now, f.sums)
	}
}

// decideRebuild does one operation on a rebuild: begins it, reads its diff, promotes it, rolls it back, or abandons it.
func (k *backgroundWork) decideRebuild(ctx context.Context, rng *rand.Rand) {
	x := k.x
	if k.rebuild.ID == "" {
		projection, ask := projections()[rng.IntN(len(projections()))], object{"workers": 1}
		if rng.IntN(3) == 0 {
			ask["tenantId"] = x.w.tenants[rng.IntN(len(x.w.tenants))].id
			if projection == "usage_aggregates" && rng.IntN(2) == 0 {
				ask["periodKey"] = time.Now().UTC().Format("2006-01")
			}
		}
		x.operate(ctx, workRebuilds, "/api/v1/projections/"+projection+"/rebuilds", ask, &k.rebuild)
		return
	}
	path := "/api/v1/rebuilds/" + k.rebuild.ID
	var r rebuild
	var diff struct{ Data []json.RawMessage }
	if !x.look(ctx, x.w.operator, path, &r) || r.State == "FOLDING" || r.State == "CATCHING_UP" {
		return
	}
	if r.State == "FAILED" {
		x.t.Errorf("a rebuild failed: %+v", r)
	}
	if r.State == "FAILED" || r.State == "ABANDONED" {
		k.rebuild = rebuild{}
		return
	}
	if status, body := x.attempt(ctx, x.w.operator, http.MethodGet, path+"/diff", nil, &diff); status == http.StatusOK &&
		len(diff.Data) > 0 {
		x.t.Errorf("the rebuilt generation differs: %s", body)
	}
	step := "promote"
	switch {
	case r.State == "PROMOTED" && rng.IntN(2) == 0:
		step = "rollback"
	case r.State == "PROMOTED":
		k.rebuild = rebuild{} // it stays promoted
		return
	case rng.IntN(3) == 0:
		step = "abandon"
	}
	if !x.operate(ctx, step, path+"/"+step, object{}, nil) && ctx.Err() == nil { // it has expired, or a later one replaced it
		x.operate(ctx, "abandoned", path+"/abandon", object{}, nil)
		k.rebuild = rebuild{}
	}
}

// retry retries dead letters of the restless tenant, one or in bulk.
func (k *backgroundWork) retry(ctx context.Context, rng *rand.Rand) {
	x := k.x
	if rng.IntN(3) == 0 {
		filter := object{"status": "FAILED", "stage": "VALIDATION", "tenantId": x.restless.id}
		x.operate(ctx, workBulks, "/api/v1/dead-letters/bulk", object{"action": "retry", "filter": filter}, nil)
		return
	}
	var letters struct{ Data []deadLetter }
	if x.look(ctx, x.w.operator, "/api/v1/dead-letters?stage=VALIDATION&status=FAILED&limit=20", &letters) && len(letters.Data) > 0 {
		x.operate(ctx, workRetries, "/api/v1/dead-letters/"+letters.Data[rng.IntN(len(letters.Data))].ID+"/retry", object{}, nil)
	}
}

// replaceSubscription cancels the restless tenant's subscription and begins another, and defines a feature. Usage accepted
// meanwhile by an instance with a stale cache is rejected later.
func (k *backgroundWork) replaceSubscription(ctx context.Context, rng *rand.Rand) {
	x := k.x
	base := "/api/v1/tenants/" + x.restless.id + "/subscriptions"
	var all struct {
		Data []struct{ ID, Status string }
	}
	if !x.look(ctx, x.w.operator, base, &all) {
		return
	}
	for _, s := range all.Data {
		if s.Status == "ACTIVE" {
			x.do(ctx, "subscriptions cancelled", x.w.operator, http.MethodPatch, base+"/"+s.ID, object{"status": "CANCELLED"}, nil)
		}
	}
	x.sleep(time.Duration(100+rng.IntN(400)) * time.Millisecond)
	x.do(ctx, workRenewed, x.w.operator, http.MethodPost, base, object{"plan": "all", "status": "ACTIVE"}, nil, "Idempotency-Key",
		uuid.NewString())
	name := fmt.Sprint("extra-", rng.IntN(50))
	x.do(ctx, "features changed", x.w.operator, http.MethodPut, "/api/v1/features/"+name,
		object{"name": name, "type": "METERED", "unit": "each"}, nil)
	x.sleep(time.Second)
}

// message sends usage as a message, sometimes an invalid one.
func (k *backgroundWork) message(ctx context.Context, rng *rand.Rand) {
	x := k.x
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if k.outside == nil {
		k.outside = x.w.kafka(kgo.DefaultProduceTopic(x.w.prefix+usageCommands), kgo.UnknownTopicRetries(-1))
		x.t.Cleanup(k.outside.Close)
	}
	tenant := x.w.tenants[rng.IntN(len(x.w.tenants))]
	s := k.sources[tenant]
	if s == nil {
		s = &source{mix: mix{duplicates: 20, conflicts: 3, rejections: 3, batch: 10}, name: messagePrefix + tenant.id[24:]}
		k.sources[tenant] = s
	}
	s.rng = rng
	value := []byte(`{"eventId":"a","eventId":"b"}`)
	if rng.IntN(20) > 0 {
		batch := s.batch()
		tenant.ledger.sending(batch)
		value = jsonOf(x.t, object{"events": batch})
		x.did(workMessages)
	} else {
		x.did(workPoison)
	}
	if err := k.outside.ProduceSync(ctx, &kgo.Record{Key: []byte(tenant.id), Value: value}).FirstErr(); err != nil {
		// A client with metadata of topics that the broker lost must be replaced.
		k.outside.Close()
		k.outside = nil
	}
}

// correct sends the open batch of usage, corrections and retractions, or a new one. Batches follow one another, so that no
// correction is refused: meterplex verify computes the figure from the order of the log.
func (k *backgroundWork) correct(ctx context.Context, rng *rand.Rand) {
	if len(k.batch) == 0 && rng != nil {
		for range 1 + rng.IntN(8) {
			k.batch = append(k.batch, k.drawCorrection(rng))
		}
	}
	if len(k.batch) == 0 {
		return
	}
	var answer struct{ Events []verdict }
	status, body := k.x.attempt(ctx, k.corrected.key, http.MethodPost, "/api/v1/usage/events", object{"events": k.batch}, &answer)
	if status == 0 {
		return
	}
	refused := func(v verdict) bool { return v.Status != "accepted" && v.Status != "duplicate" }
	if len(answer.Events) != len(k.batch) || slices.ContainsFunc(answer.Events, refused) {
		k.x.t.Errorf("corrections: %v was answered with %d %s", k.batch, status, body)
	}
	k.batch = nil
	k.x.did(workCorrected)
}

// drawCorrection draws usage, or a correction or retraction of usage sent before. It is never a correction of retracted usage: a refusal
// that depends on whether the validator was faster would not be known.
func (k *backgroundWork) drawCorrection(rng *rand.Rand) object {
	id := fmt.Sprint("corrected-", len(k.ids), "-", rng.Uint64())
	e := object{"eventId": id, "feature": correctedFeature, "amount": 1 + rng.Int64N(1000),
		"timestamp": time.Now().UTC().Format(time.RFC3339Nano)}
	if len(k.ids) > 0 && rng.IntN(3) > 0 {
		if ref := k.ids[max(0, len(k.ids)-1-rng.IntN(10))]; !k.retracted[ref] {
			e["correctionRef"], e["type"] = ref, "correction"
			if rng.IntN(5) == 0 {
				e["type"], k.retracted[ref] = "retraction", true
				delete(e, "amount")
			}
			return e
		}
	}
	k.ids = append(k.ids, id)
	return e
}
