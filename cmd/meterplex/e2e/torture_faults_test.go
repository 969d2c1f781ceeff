package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
	return slices.ContainsFunc(x.now.faults, func(f drawnFault) bool { return f.scope&processes == 0 && f.scope&scopes != 0 })
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
	// By the end of the second most writes of all instances wait for the heads: the frozen instance gets them, in an open transaction.
	if err := x.whileHeld(pgx.ReadCommitted, `SELECT FROM log_heads ORDER BY partition FOR UPDATE`, func() {
		x.sleep(time.Second)
		m.signal(syscall.SIGSTOP)
	}); err != nil {
		return err.Error()
	}
	defer m.signal(syscall.SIGCONT)
	for _, tenant := range x.tenants[:len(x.tenants)-1] { // the last one's usage may be rejected
		from := tenant.ledger.acked()
		if !x.becomesTrue(patience, func(context.Context) bool { return tenant.ledger.acked() > from }) {
			return "a tenant waits for the heads of the frozen instance"
		}
	}
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

// disconnectClients runs clients that close or reset their connections at any moment of a request and of its answer. The ledger has no
// event of a request that was sent in part: none may be stored.
func disconnectClients(x *torture, d drawnFault) string {
	rng := rand.New(rand.NewPCG(d.seed, 1))
	from := &source{rng: rng, mix: mix{rejections: 3, batch: 20}, name: fmt.Sprintf("gone%d", x.now.number)}
	tenant := x.tenants[rng.IntN(len(x.tenants))]
	whole, parts := 0, 0
	for start := time.Now(); (time.Since(start) < d.hold || whole*parts == 0) && x.t.Context().Err() == nil; {
		m := x.members[rng.IntN(len(x.members))]
		if x.sendAndDisconnect(rng, m.clients.addr(), tenant, from.batch()) {
			whole++
		} else {
			parts++
		}
		x.sleep(20 * time.Millisecond)
	}
	return ""
}

// sendAndDisconnect sends a request, in whole or in part, and closes the connection or resets it, as a machine without power does. whole
// reports whether the whole request was sent.
func (x *torture) sendAndDisconnect(rng *rand.Rand, address string, tenant *tenant, batch []event) (whole bool) {
	body := jsonOf(x.t, object{"events": batch})
	raw := fmt.Appendf(nil, "POST /api/v1/usage/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", address, tenant.key, len(body), body)
	c, err := net.Dial("tcp", address)
	if err != nil {
		x.t.Error(err)
		return false
	}
	defer c.Close()
	if rng.IntN(2) == 0 {
		_ = c.(*net.TCPConn).SetLinger(0) // a reset
	}
	cut := len(raw)
	if rng.IntN(2) == 0 {
		cut = rng.IntN(len(raw))
	}
	if whole = cut == len(raw); whole {
		tenant.ledger.sending(batch)
	}
	_, _ = c.Write(raw[:cut]) // the instance may be away
	x.sleep(time.Duration(rng.IntN(6000)) * time.Microsecond)
	if whole && rng.IntN(3) == 0 {
		_, _ = c.Read(make([]byte, 1+rng.IntN(200))) // read a part of the answer
	}
	return whole
}

// stormOfMembers lets members join, leave and be killed repeatedly, while one is frozen for longer than its session. Then that one
// continues as if it still owned its partitions.
func stormOfMembers(x *torture, d drawnFault) string {
	const consuming = "validator,aggregator,deadletter"
	var zombie *instance
	if zombie = x.serve(consuming); !x.becomesTrue(patience, func(ctx context.Context) bool {
		return x.deployment.members(ctx) == len(x.members)*len(groups())+3
	}) {
		return "the member to freeze has no partition"
	}
	zombie.signal(syscall.SIGSTOP)
	var storm sync.WaitGroup
	for n := range 2 {
		i := x.prepare(consuming)
		storm.Go(func() {
			for turn := range 4 {
				if err := i.tryStart(); err != nil {
					x.t.Error(err)
					return
				}
				x.sleep(time.Duration(300+700*n) * time.Millisecond)
				if i.end([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[(turn+n)%2]) > 0 {
					x.t.Errorf("%s: %s", i.name, i.lastLines(30))
				}
			}
		})
	}
	storm.Wait()
	ended := x.becomesTrue(patience, func(ctx context.Context) bool { return x.deployment.members(ctx) == len(x.members)*len(groups()) })
	zombie.signal(syscall.SIGCONT)
	back := x.becomesTrue(patience, func(ctx context.Context) bool { return x.deployment.members(ctx) == len(x.members)*len(groups())+3 })
	x.awaitEvents(50)
	zombie.stop()
	if !ended || !back {
		return fmt.Sprintf("the session of the frozen member ended: %t, it came back: %t", ended, back)
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
