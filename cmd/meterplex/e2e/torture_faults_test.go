package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
)

// member is an instance with the proxies around it.
type member struct {
	*instance
	database, clients *proxy
	pipe              []*proxy // one for each broker
}

// targets returns the members that a fault applies to.
func (x *torture) targets(d drawnFault) []*member {
	if d.all {
		return x.members
	}
	return []*member{x.members[d.target]}
}

func onDatabase(m proxyMode) func(*torture, drawnFault) string {
	return func(x *torture, d drawnFault) string {
		return x.inject(d, m, func(m *member) []*proxy { return []*proxy{m.database} })
	}
}

func onPipe(m proxyMode) func(*torture, drawnFault) string {
	return func(x *torture, d drawnFault) string {
		return x.inject(d, m, func(m *member) []*proxy { return m.pipe })
	}
}

func onClients(m proxyMode) func(*torture, drawnFault) string {
	return func(x *torture, d drawnFault) string {
		return x.inject(d, m, func(m *member) []*proxy { return []*proxy{m.clients} })
	}
}

// inject sets proxies to a mode for the fault's time, and until traffic has met it.
func (x *torture) inject(d drawnFault, m proxyMode, which func(*member) []*proxy) string {
	tell := func(m proxyMode) {
		for _, at := range x.targets(d) {
			for _, p := range which(at) {
				p.set(m)
			}
		}
	}
	tell(m)
	x.sleep(d.hold)
	why := ""
	x.becomesTrue(30*time.Second, func(context.Context) bool {
		why = ""
		for _, at := range x.targets(d) {
			if !slices.ContainsFunc(which(at), func(p *proxy) bool { return p.hits.Load() > 0 }) {
				why = "no traffic to or from " + at.name
			}
		}
		return why == ""
	})
	tell(passes)
	return why
}

func (x *torture) sleep(d time.Duration) {
	select {
	case <-x.t.Context().Done():
	case <-time.After(d):
	}
}

// killInstance kills an instance with SIGKILL under load.
func killInstance(x *torture, d drawnFault) string {
	m := x.members[d.target]
	x.awaitEvents(1)
	x.checkNotEnded(m)
	code := m.end(syscall.SIGKILL)
	x.sleep(d.hold)
	x.restart(m, x.concurrent(database|pipe))
	if code != -1 {
		return fmt.Sprintf("it ended by itself with %d", code)
	}
	return ""
}

func killAll(x *torture, d drawnFault) string {
	x.awaitEvents(1)
	x.endAll(syscall.SIGKILL)
	x.sleep(d.hold)
	for _, m := range x.members {
		x.restart(m, false)
	}
	return ""
}

func (x *torture) endAll(sig syscall.Signal) {
	var wait sync.WaitGroup
	for _, m := range x.members {
		wait.Go(func() {
			x.checkNotEnded(m)
			if code := m.end(sig); code > 0 || code == 0 && sig == syscall.SIGKILL {
				x.t.Errorf("%s exited with %d after %s:\n%s", m.name, code, sig, m.lastLines(30))
			}
		})
	}
	wait.Wait()
}

// checkNotEnded reports an instance that ended by itself: no fault may cause that.
func (x *torture) checkNotEnded(m *member) {
	if state, died := m.exitedByItself(); died {
		x.t.Errorf("%s ended by itself: %s\n%s", m.name, state, m.lastLines(30))
	}
}

// concurrent reports whether another fault of the round affects one of these scopes.
func (x *torture) concurrent(scopes scope) bool {
	return slices.ContainsFunc(x.now.faults, func(f drawnFault) bool { return f.kind.scope&processes == 0 && f.kind.scope&scopes != 0 })
}

// shutdownTimeout is the last log line of a process that could not finish its requests after SIGTERM.
const shutdownTimeout = "context deadline exceeded"

// stopInstance sends SIGTERM: the process must exit with 0. If another fault delays requests, it
// may also give them up and log that.
func stopInstance(x *torture, d drawnFault) string {
	m := x.members[d.target]
	x.awaitEvents(1)
	x.checkNotEnded(m)
	code := m.end(syscall.SIGTERM)
	if late := x.concurrent(database|pipe|clients) && strings.Contains(m.lastLines(3), shutdownTimeout); code != 0 && !late {
		x.t.Errorf("%s exited with %d after SIGTERM:\n%s", m.name, code, m.lastLines(30))
	}
	x.sleep(d.hold)
	x.restart(m, x.concurrent(database|pipe))
	return ""
}

// restart starts an instance again. If mayFail is true, a server may be unreachable and end
// the start; then it is repeated.
func (x *torture) restart(m *member, mayFail bool) {
	x.checkNotEnded(m)
	until := time.Now().Add(patience)
	for !m.alive() {
		err := m.tryStart()
		if err == nil {
			return
		}
		m.kill()
		if !mayFail || time.Now().After(until) {
			x.t.Errorf("%s does not start: %v", m.name, err)
			return
		}
		x.sleep(time.Second)
	}
}

// freezeInstance stops an instance until the others have taken over its partitions, and resumes it
// with an old relay, old group members and open transactions.
func freezeInstance(x *torture, d drawnFault) string {
	m := x.members[d.target]
	// Wait until every instance has relay leases.
	if !x.becomesTrue(time.Minute, func(ctx context.Context) bool { return x.leaseOwners(ctx) == len(x.members) }) {
		return "not every instance had relay leases"
	}
	m.signal(syscall.SIGSTOP)
	defer m.signal(syscall.SIGCONT)
	x.sleep(d.hold)
	if !x.becomesTrue(time.Minute, func(ctx context.Context) bool {
		n := x.deployment.members(ctx)
		return x.leaseOwners(ctx) == len(x.members)-1 && n == (len(x.members)-1)*len(groups())
	}) {
		return "the others did not take over its partitions"
	}
	return ""
}

// leaseOwners counts the owners of relay leases.
func (x *torture) leaseOwners(ctx context.Context) (n int) {
	if err := x.sql.QueryRow(ctx, `SELECT count(DISTINCT owner) FROM relay_cursors WHERE lease_until > now()`).Scan(&n); err != nil {
		return -1
	}
	return n
}

// disconnectClients runs clients that give up at random moments and return.
func disconnectClients(x *torture, d drawnFault) string {
	rng := rand.New(rand.NewPCG(d.seed, 1))
	from := &source{rng: rng, mix: mix{duplicates: 20, conflicts: 3, rejections: 3, batch: 20}, name: fmt.Sprintf("gone%d", x.now.number)}
	tenant := x.tenants[rng.IntN(len(x.tenants))]
	gone := 0
	for start := time.Now(); time.Since(start) < d.hold && x.t.Context().Err() == nil; {
		c := &client{w: x.deployment, tenant: tenant, to: x.members[rng.IntN(len(x.members))].clients.url}
		ctx, cancel := context.WithTimeout(x.t.Context(), time.Duration(rng.IntN(15000))*time.Microsecond)
		_, ok := c.sendOnce(ctx, from.batch())
		if !ok && ctx.Err() != nil {
			gone++
		}
		cancel()
		x.sleep(20 * time.Millisecond)
	}
	if gone == 0 {
		return "no client gave up"
	}
	return ""
}

// offsetsToStart: the offsets are the groups' only state in Kafka; the log does not need them.
func offsetsToStart(x *torture, _ drawnFault) string {
	x.awaitEvents(50)
	if !x.becomesTrue(time.Minute, x.committed) {
		return "the validator's group committed no offset"
	}
	x.endAll(syscall.SIGTERM)
	return x.resetOffsets(false)
}

// committed reports whether the validator's group has an offset above 0.
func (x *torture) committed(ctx context.Context) bool {
	c := x.kafka()
	defer c.Close()
	offsets, err := kadm.NewClient(c).FetchOffsets(ctx, x.prefix+"meterplex-usage-validator")
	found := false
	offsets.Each(func(o kadm.OffsetResponse) { found = found || o.At > 0 })
	return err == nil && found
}

func offsetsToEnd(x *torture, _ drawnFault) string {
	x.awaitEvents(50)
	x.endAll(syscall.SIGKILL) // with many uncommitted records
	return x.resetOffsets(true)
}

func (x *torture) resetOffsets(toEnd bool) (why string) {
	if n := x.moveOffsets(toEnd); n == 0 {
		why = "no offset was moved"
	}
	for _, m := range x.members {
		x.restart(m, false)
	}
	return why
}

// rewindConsumers rewinds a consumer and replays a range, as an operator does.
func rewindConsumers(x *torture, d drawnFault) string {
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
	defer cancel()
	rng := rand.New(rand.NewPCG(d.seed, 1))
	consumer := []string{"meterplex-usage-validator", "meterplex-usage-aggregator", "meterplex-dead-letter-handler"}[rng.IntN(3)]
	x.awaitEvents(20)
	for n, ask := range []object{
		{"consumer": consumer, "to": "start", "reason": "torture"},
		{"topic": "usage.raw", "fromTime": time.Now().Add(-time.Minute).UTC().Format(time.RFC3339), "reason": "torture"},
	} {
		path := []string{"/api/v1/replays/rewind", "/api/v1/replays"}[n]
		var answer replayed
		if status, body := x.attempt(ctx, x.operator, "POST", path, ask, &answer, "Idempotency-Key", uuid.NewString()); status != 202 {
			return fmt.Sprintf("%s: %d %s", path, status, body)
		}
		x.work.replays.Add(1)
		done := x.becomesTrue(time.Minute, func(ctx context.Context) bool {
			status, _ := x.attempt(ctx, x.operator, "GET", "/api/v1/replays/"+answer.ID, nil, &answer)
			return status == 200 && answer.State != "RUNNING" && answer.Remaining == 0
		})
		if !done || answer.State != "DONE" {
			return fmt.Sprintf("%s: %+v", path, answer)
		}
	}
	return ""
}
