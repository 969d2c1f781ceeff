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
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local/localtest/kafkatest"
	"github.com/meterplex/meterplex/internal/tier"
)

// torture is a run of real instances, servers and clients with faults drawn by its seed.
type torture struct {
	*deployment
	servers      *serverPair
	long         bool
	members      []*member
	restless     *tenant // its subscription is repeatedly cancelled and renewed
	load         *load
	now          round // the current round
	work         *backgroundWork
	requestCount atomic.Int64
	begun        time.Time

	reached                int // faults
	unanswered             int // requests without an answer
	lost, doubled, unknown int // events
}

// All promises at once: after any combination of faults every acknowledged event is
// stored and counted once, and the service has recovered within 30 s.
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
	p := newPlan(x.seed, instances, len(x.brokers()), x.long, scale)
	for time.Since(x.begun) < length && !t.Failed() {
		x.round(p.next())
	}
	if length >= allWork {
		x.checkInvariant("every kind of background work was done", x.checkWork)
	}
	x.final()
}

// allWork is more than enough time for every kind of background work to be done at least once.
const allWork = 10 * time.Minute

// checkWork checks that every kind of background work was done at least once.
func (x *torture) checkWork() string {
	for _, c := range x.work.counts() {
		if c.n == 0 {
			x.t.Errorf("%s: 0", c.name)
		}
	}
	return fmt.Sprintf("%d kinds", len(x.work.counts()))
}

// newTorture starts servers and instances, and creates tenants. The full form has servers of its own: a standby, and three brokers if there is room.
func newTorture(t testing.TB, instances int) *torture {
	x := &torture{long: !testing.Short()}
	t.Cleanup(func() { x.report(t) }) // runs last
	if x.long {
		x.servers = newServerPair(t)
		x.servers.attach()
		x.servers.synchronous(true)
	} else {
		x.servers = sharedServer(t)
	}
	x.deployment = newDeploymentAt(t, x.servers.url(), x.servers.adminURL())
	switch {
	case x.long && roomForThreeBrokers():
		x.cluster = kafkatest.Cluster(t, copies)
	case x.long:
		x.cluster = kafkatest.Cluster(t, 1)
	}
	x.http.Timeout = 10 * time.Second
	x.work = newBackgroundWork(x)
	for range instances {
		x.addMember()
	}
	x.seedTenants()
	if len(x.cluster) == copies {
		x.awaitFolded(x.members[0].instance, "meterplex-usage-aggregator") // the groups' offsets topic exists
		x.checkReplicated()
	}
	x.begun = time.Now()
	return x
}

// addMember starts an instance whose connections, to servers and from clients, all pass proxies.
func (x *torture) addMember() {
	m := &member{pipe: newPipeProxies(x.t, x.brokers().Brokers())}
	m.database = newProxy(x.t, func() string { return x.servers.host.Load().(string) })
	m.database.start()
	m.clients = newProxy(x.t, func() string {
		if url := m.url(); url != "" {
			return hostOf(url)
		}
		return ""
	})
	var pipes []string
	for _, p := range m.pipe {
		pipes = append(pipes, p.addr())
	}
	m.instance = x.prepare("", append(x.work.endings.settings(), "DATABASE_URL="+atHost(x.db, m.database.addr()), "METERPLEX_ROLLBACK_KEEP=20s",
		"KAFKA_BROKERS="+strings.Join(pipes, ","), fmt.Sprint("KAFKA_REPLICATION=", len(pipes)))...)
	m.clients.start()
	m.start()
	x.members = append(x.members, m)
}

func (x *torture) seedTenants() {
	first := x.members[0].instance
	x.catalogue(first, limited(firstLimit, firstLimit)...)
	n := 3
	if x.long {
		n = 5
	}
	all := x.createTenants(first, n)
	x.restless = all[n-1]
	x.work.limits.createKeys(first)
	corrected := x.work.corrections.createTenant(first)
	x.work.periods.adjustLate(first, append(slices.Clone(all), corrected))
	x.work.endings.create(first, append(slices.Clone(all), corrected))
	for _, m := range x.members {
		x.awaitKeys(m.instance, append(all, corrected))
	}
}

func (x *torture) awaitEvents(n int) { x.load.awaitMore(n) }

// attempt sends a request to one instance after the other until an answer is neither 503 nor
// 429. It returns status 0 when ctx ends. Any other 5xx is a fault of the service.
func (x *torture) attempt(ctx context.Context, key, method, path string, in, out any, header ...string) (status int, body []byte) {
	for ctx.Err() == nil {
		at := x.members[int(x.requestCount.Add(1))%len(x.members)]
		status, body, err := x.call(ctx, key, method, at.clients.url()+path, in, header...)
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

// round runs load and faults together, restarts the instances, and waits until the
// service has recovered.
func (x *torture) round(r round) {
	x.now = r
	x.t.Log(r)
	tries := make([]atomic.Int64, r.each*len(x.tenants))
	x.load = x.startLoad(x.tenants, r.each, r.mix, func(client int) string {
		n := client + int(tries[client].Add(1))
		return x.members[n%len(x.members)].clients.url()
	})
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
	healed, clock := time.Now(), readCPUTimes()
	x.load.cancel()
	x.work.rest.Store(true)
	took, whole := x.awaitRecovery()
	recovery := took.Sub(healed)
	limit := x.checkRecovery(recovery, whole, clock)
	x.load.stop()
	stopWork()
	x.unanswered += x.load.lost()
	for n, f := range r.faults {
		if x.reached++; lacking[n] != "" {
			x.t.Errorf("round %d: %s was not reached: %s", r.number, f, lacking[n])
		}
	}
	x.checkIdle()
	for _, m := range x.members {
		x.checkNotEnded(m)
	}
	x.t.Logf("round %d: recovered after %s, limit %s; %d acked so far", r.number, recovery.Round(time.Millisecond), limit, x.total("accepted"))
}

// recoveryTime bounds the wait for a recovery, which must take at most 30 s.
const recoveryTime = 4 * time.Minute

// awaitRecovery waits until relay and consumers have reached the end of the log.
func (x *torture) awaitRecovery() (at time.Time, whole bool) {
	state := ""
	whole = x.becomesTrue(recoveryTime, func(ctx context.Context) bool {
		var unpublished int64
		var behind string
		if err := x.sql.QueryRow(ctx, behindSQL).Scan(&unpublished, &behind); err != nil {
			state = err.Error()
			return false
		}
		state = fmt.Sprintf("%d unpublished, behind: %s", unpublished, behind)
		return unpublished == 0 && behind == ""
	})
	if !whole {
		x.t.Errorf("not recovered after %s: %s", recoveryTime, state)
	}
	return time.Now(), whole
}

// recoveryLimit is the promise: lag 0 within 30 s of the end of the faults.
const recoveryLimit = 30 * time.Second

// checkRecovery compares a recovery with its limit. If other programs used the processors
// meanwhile, the limit grows in proportion: 30 s of the whole machine. In the usual run, beside other
// tests, a late recovery is only printed.
func (x *torture) checkRecovery(recovery time.Duration, whole bool, clock cpuTimes) (limit time.Duration) {
	others := clock.others()
	limit = time.Duration(float64(recoveryLimit) / max(0.1, 1-others)).Round(time.Second)
	if whole && recovery > limit {
		say := x.t.Logf
		if x.long {
			say = x.t.Errorf
		}
		say("round %d: recovered only after %s; the limit is %s, with %.0f %% of the machine used by other programs",
			x.now.number, recovery.Round(time.Millisecond), limit, others*100)
	}
	return limit
}

// checkIdle checks the invariants that hold while the service is idle.
func (x *torture) checkIdle() {
	x.identity()
	x.work.limits.check()
	for _, r := range rules()[:1] {
		x.checkRule(r)
	}
	x.checkLeaks()
}

// identity checks on any instance that every accepted event is in exactly one place.
func (x *torture) identity() string {
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
	defer cancel()
	var response struct {
		Holds bool
		Total identityTerms
	}
	if status, body := x.attempt(ctx, x.operator, http.MethodGet, "/api/v1/system/identity", nil, &response); status != http.StatusOK || !response.Holds || !response.Total.hold() {
		x.t.Errorf("the identity does not hold: %d %s", status, body)
	}
	return fmt.Sprintf("accepted %d = applied %d + rejected %d + in flight %d + parked %d", response.Total.Accepted, response.Total.Applied, response.Total.Rejected,
		response.Total.Undecided+response.Total.Unapplied, response.Total.Parked)
}

// checkLeaks checks that an idle service has no long transaction and no leaked goroutines.
func (x *torture) checkLeaks() {
	n, text := 0, ""
	quiet := x.becomesTrue(20*time.Second, func(ctx context.Context) bool {
		err := x.sql.QueryRow(ctx, `SELECT count(*), coalesce(string_agg(format('%s %s: %s', state, now() - xact_start, left(query, 100)), E'\n'), '') FROM pg_stat_activity
WHERE datname = current_database() AND usename = 'meterplex' AND xact_start < now() - interval '10 s'`).Scan(&n, &text)
		return err == nil && n == 0
	})
	if !quiet {
		x.t.Errorf("%d transactions are left open at rest:\n%s", n, text)
	}
	for _, m := range x.members {
		running := 0
		if !x.becomesTrue(30*time.Second, func(context.Context) bool {
			running = int(x.metric(m.instance, "go_goroutines"))
			return running <= mostGoroutines
		}) {
			x.t.Errorf("%s has %d goroutines at rest; the limit is %d", m.name, running, mostGoroutines)
		}
	}
}

// mostGoroutines is about twice the number of an idle instance.
const mostGoroutines = 500

// total sums the verdicts of a status.
func (x *torture) total(status string) (n int) {
	for _, tenant := range x.tenants {
		tenant.ledger.mu.Lock()
		n += tenant.ledger.verdictCounts[status]
		tenant.ledger.mu.Unlock()
	}
	return n
}
