package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// torture is a run of faults, load and background work on a deployment, drawn by its seed.
type torture struct {
	t        testing.TB
	w        *deployment
	long     bool
	strict   bool        // a late recovery fails the run
	members  []*instance // behind proxies
	restless *tenant     // its subscription is repeatedly cancelled and renewed
	load     *load
	now      round // the current round
	turn     atomic.Int64
	begun    time.Time
	emptied  bool // the topics lack records until they are filled again
	work     *backgroundWork

	mu   sync.Mutex
	done map[string]int // background work, by kind
}

// TestTorture tests all promises at once: after any combination of faults every acknowledged event is stored and counted
// once, and the service has recovered within 30 s.
// METERPLEX_TEST_DURATION sets the duration; see docs/reliability/README.md. In the short form, two instances use the servers
// that the tests of this binary share, which are killed, too: no other test runs at the same time.
func TestTorture(t *testing.T) {
	length, instances, scale := tier.Duration(t, 10*time.Second, 2*time.Minute), 2, 0.25
	if !testing.Short() {
		t.Parallel()
		// A run of 15 minutes or more holds faults for their full time.
		instances, scale = 3, min(1, max(0.3, length.Minutes()/15))
	}
	x := newTorture(t, instances)
	x.strict = length >= allWork
	p := newPlan(x.w.seed, instances, len(x.w.brokers()), x.long, scale)
	for time.Since(x.begun) < length && !t.Failed() {
		x.round(p.next())
	}
	if x.strict {
		for _, kind := range everyWork() {
			if x.done[kind] == 0 {
				t.Errorf("%s: 0", kind)
			}
		}
	}
	x.final()
}

// allWork is more than enough time for every kind of background work to be done at least once.
const allWork = 10 * time.Minute

// newTorture starts servers and instances, and creates tenants. The full form has servers of its own: a standby, and three brokers if there
// is room.
func newTorture(t testing.TB, instances int) *torture {
	servers := sharedServer
	if !testing.Short() {
		servers = func(t testing.TB) *serverPair {
			p := newServerPair(t)
			p.attach()
			p.synchronous(true)
			return p
		}
	}
	w := newDeploymentOn(servers(t))
	x := &torture{t: t, w: w, long: !testing.Short(), done: map[string]int{}}
	t.Cleanup(func() { t.Logf("%s: %d rounds; %v", time.Since(x.begun).Round(time.Second), x.now.number, x.done) })
	switch {
	case x.long && roomForThreeBrokers():
		w.cluster = kafkatest.StartCluster(t, copies)
	case x.long:
		w.cluster = kafkatest.StartCluster(t, 1)
	}
	w.http.Timeout = 10 * time.Second
	x.work = newBackgroundWork(x)
	for range instances {
		i := prepareProxied(w, append(x.work.endings.settings(), "METERPLEX_ROLLBACK_KEEP=20s")...)
		i.start()
		x.members = append(x.members, i)
	}
	x.seedTenants()
	if len(w.cluster) == copies {
		awaitFolded(w, "meterplex-usage-aggregator") // the groups' offsets topic exists
		checkReplicated(w)
	}
	x.begun = time.Now()
	return x
}

func (x *torture) seedTenants() {
	w, first, n := x.w, x.members[0], 3
	w.catalogue(first, limited(firstLimit, firstLimit)...)
	if x.long {
		n = 5
	}
	all := w.createTenants(first, n)
	x.restless = all[n-1]
	for _, tenant := range all {
		x.work.limits.keys[tenant] = w.keyOf(first, tenant, "entitlements:reserve", "entitlements:read")
	}
	x.work.corrected, x.work.endings.ended = x.w.createTenant(first), x.w.createTenant(first)
	billed := append(slices.Clone(all), x.work.corrected)
	x.work.periods.adjustLate(first, billed)
	x.work.endings.begin(first, billed)
	for _, m := range x.members {
		awaitKeys(w, m, append(billed, x.work.endings.ended))
	}
}

// next is the address of the next instance, through its proxy.
func (x *torture) next() string {
	return x.members[int(x.turn.Add(1))%len(x.members)].clients.url()
}

// attempt sends a request to one instance after the other until an answer is neither 503 nor
// 429. It returns status 0 when ctx ends. Any other 5xx is a fault of the service.
func (x *torture) attempt(ctx context.Context, key, method, path string, in, out any, header ...string) (status int, body []byte) {
	for ctx.Err() == nil {
		status, body, err := x.w.call(ctx, key, method, x.next()+path, in, header...)
		if err == nil && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
			if status >= 500 {
				x.t.Errorf("%s %s: %d %s", method, path, status, body)
			}
			if status < 300 && out != nil {
				if err := json.Unmarshal(body, out); err != nil {
					x.t.Errorf("%s %s: %v: %s", method, path, err, body)
				}
			}
			return status, body
		}
		x.sleep(50 * time.Millisecond)
	}
	return 0, nil
}

// do sends a change, and counts it by the kind of work. A refusal that depends on the state of the object is no fault.
func (x *torture) do(ctx context.Context, kind, key, method, path string, in, out any, header ...string) (done bool) {
	status, body := x.attempt(ctx, key, method, path, in, out, header...)
	switch status {
	case 0:
	case http.StatusOK, http.StatusCreated, http.StatusAccepted:
		x.did(kind)
		return true
	case http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity:
		x.did(kind + " refused")
	default:
		x.t.Errorf("%s: %s %s: %d %s", kind, method, path, status, body)
	}
	return false
}

// operate is do by the operator, with a reason.
func (x *torture) operate(ctx context.Context, kind, path string, in object, out any) (done bool) {
	in["reason"] = "torture"
	return x.do(ctx, kind, x.w.operator, http.MethodPost, path, in, out, "Idempotency-Key", uuid.NewString())
}

// look reads an answer with status 200. Without one, it returns false.
func (x *torture) look(ctx context.Context, key, path string, out any) bool {
	status, body := x.attempt(ctx, key, http.MethodGet, path, nil, out, "Prefer", "wait=5")
	if status != http.StatusOK && status != 0 && status != http.StatusNotFound {
		x.t.Errorf("GET %s: %d %s", path, status, body)
	}
	return status == http.StatusOK
}

func (x *torture) did(kind string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.done[kind]++
}

// round runs load and faults together, restarts the instances, and waits until the
// service has recovered.
func (x *torture) round(r round) {
	x.now = r
	x.t.Log(r)
	x.load = x.w.startLoad(x.w.tenants, r.each, r.mix, func(int) string { return x.next() })
	stopWork := x.work.begin(r.seed)
	lacking := make([]string, len(r.faults))
	var wait sync.WaitGroup
	for n, f := range r.faults {
		lacking[n] = "it was cancelled"
		wait.Go(func() {
			x.sleep(f.after)
			lacking[n] = f.reach(x, f)
		})
	}
	wait.Wait()
	for _, m := range x.members {
		x.restart(m, false)
	}
	x.load.cancel()
	x.work.rest.Store(true)
	took := x.w.drain()
	if say := x.t.Logf; took > recoveryLimit {
		if x.strict {
			say = x.t.Errorf
		}
		say("round %d: recovered only after %s", r.number, took)
	}
	x.load.stop()
	stopWork()
	for n, f := range r.faults {
		if lacking[n] != "" {
			x.t.Errorf("round %d: %s was not reached: %s", r.number, f, lacking[n])
		}
	}
	x.checkIdle()
	x.t.Logf("round %d: recovered after %s; %d requests had no answer", r.number, took.Round(time.Millisecond), x.load.lost())
}

// recoveryLimit is the promise: lag 0 within 30 s of the end of the faults.
const recoveryLimit = 30 * time.Second

// checkIdle checks an idle service: the identity, the log and its tables, and that no process has
// ended, no transaction is open and no goroutine was left behind.
func (x *torture) checkIdle() {
	x.identity(x.t.Context(), nil)
	if x.long { // the only round of the short form is followed by final
		x.w.prove(false)
	}
	for _, m := range x.members {
		x.checkNotEnded(m)
		within(x.t, m.name+" has few goroutines at rest", func(context.Context) (bool, string) {
			running := x.w.metric(m, "go_goroutines")
			return running <= 500, fmt.Sprint(running) // about twice the number of an idle instance
		})
	}
	within(x.t, "no transaction is left open at rest", func(ctx context.Context) (bool, string) {
		n, text := 0, ""
		err := x.w.sql.QueryRow(ctx,
			`SELECT count(*), coalesce(string_agg(format('%s %s: %s', state, now() - xact_start, left(query, 100)), E'\n'), '')
FROM pg_stat_activity WHERE datname = current_database() AND usename = 'meterplex'
 AND xact_start < now() - interval '10 s'`).Scan(&n, &text)
		return err == nil && n == 0, fmt.Sprint(text, err)
	})
}

// final settles all open requests and checks every invariant.
func (x *torture) final() {
	w, at, ctx := x.w, x.members[0], x.t.Context()
	awaitConsumed(w)
	x.settle(at)
	x.work.correct(ctx, nil)
	within(x.t, "no reservation is held", func(context.Context) (bool, string) {
		held := w.count(`SELECT count(*) FROM reservations WHERE state = 'HELD'`)
		return held == 0, fmt.Sprint(held)
	})
	w.drain()
	if x.emptied { // afterwards no record may be missing
		w.cli(at, w.operator).replay("rewind", "--since", "168h")
		w.drain()
	}
	x.work.periods.settle(ctx)
	x.work.endings.settle(ctx)
	x.identity(ctx, nil)
	x.abandonRebuilds(ctx)
	x.work.limits.check()
	p := w.verify(at, "--all")
	requireProven(w, "meterplex verify --all", p)
	x.t.Log(p.String())
	w.http.CloseIdleConnections()
	x.endAll(syscall.SIGTERM)
	within(x.t, "no session, prepared transaction or group member is left behind", func(ctx context.Context) (bool, string) {
		sessions := w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'meterplex'`)
		prepared, members := w.count(`SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`), groupMembers(ctx, w)
		return sessions+prepared+members == 0, fmt.Sprint(sessions, prepared, members)
	})
	for _, tenant := range w.tenants {
		compareLedger(w, tenant)
	}
}

// settle sends events without a verdict again, and refused events that another instance
// may still store from an unanswered request.
func (x *torture) settle(at *instance) {
	x.w.settle(at, x.w.tenants...)
	for _, tenant := range x.w.tenants {
		c := &client{w: x.w, tenant: tenant, to: at.url}
		for open := tenant.ledger.uncertain(); len(open) > 0; open = open[min(len(open), 1000):] {
			c.send(x.t.Context(), open[:min(len(open), 1000)])
		}
	}
}

// abandonRebuilds abandons the undecided rebuilds, also those that began without an answer: one blocks others, and closes wait for it.
func (x *torture) abandonRebuilds(ctx context.Context) {
	x.work.rebuild = rebuild{}
	var ids []string
	must.OK(x.t, x.w.sql.QueryRow(ctx,
		`SELECT coalesce(array_agg(id::text), '{}') FROM projection_rebuilds WHERE state IN ('FOLDING', 'CATCHING_UP', 'READY')`).
		Scan(&ids))
	for _, id := range ids {
		x.operate(ctx, "abandoned at the end", "/api/v1/rebuilds/"+id+"/abandon", object{}, nil)
	}
}

func (r round) String() string {
	var seen []string
	for _, f := range r.faults {
		seen = append(seen, f.String())
	}
	return fmt.Sprintf("round %d: %s; load: %d clients a tenant, %+v", r.number, strings.Join(seen, ", "), r.each, r.mix)
}

// everyWork lists the kinds of background work that a long run does at least once.
func everyWork() []string {
	return []string{
		workFigures, workAsOf, workChecks, workExplained, workRebuilds, "promote", "rollback", "abandon", workRetries, workBulks,
		workRenewed,
		workReplays,
		workMessages, workPoison, workCorrected, workClosed, workReopened, workDecided, workConsumed, workHeld, workLimits, workOffboarded,
	}
}
