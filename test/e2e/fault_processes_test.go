package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
)

// on sets some proxies of the targets to a mode for the fault's time, and until traffic has met it.
func on(m proxyMode, which func(*instance) []*proxy) func(*torture, drawnFault) string {
	return func(x *torture, d drawnFault) (why string) {
		hit := x.members
		if !d.all {
			hit = hit[d.target : d.target+1]
		}
		set := func(m proxyMode) {
			for _, at := range hit {
				for _, p := range which(at) {
					p.set(m)
				}
			}
		}
		set(m)
		x.sleep(d.hold)
		becomesTrue(x.w, 30*time.Second, func(context.Context) bool {
			why = ""
			for _, at := range hit {
				if !slices.ContainsFunc(which(at), func(p *proxy) bool { return p.hits.Load() > 0 }) {
					why = "no traffic to or from " + at.name
				}
			}
			return why == ""
		})
		set(passes)
		return why
	}
}

func onDatabase(m proxyMode) func(*torture, drawnFault) string {
	return on(m, func(i *instance) []*proxy { return []*proxy{i.database} })
}

func onPipe(m proxyMode) func(*torture, drawnFault) string {
	return on(m, func(i *instance) []*proxy { return i.pipe })
}

func onClients(m proxyMode) func(*torture, drawnFault) string {
	return on(m, func(i *instance) []*proxy { return []*proxy{i.clients} })
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
	x.load.awaitMore(1)
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
	x.load.awaitMore(1)
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
func (x *torture) checkNotEnded(m *instance) {
	if state, died := m.exitedByItself(); died {
		x.t.Errorf("%s ended by itself: %s\n%s", m.name, state, m.lastLines(30))
	}
}

// concurrent reports whether another fault of the round affects one of these scopes.
func (x *torture) concurrent(scopes scope) bool {
	return slices.ContainsFunc(x.now.faults, func(f drawnFault) bool { return f.scope&processes == 0 && f.scope&scopes != 0 })
}

// stopInstance sends SIGTERM: the process must exit with 0. If another fault delays requests, it
// may also give them up and log that.
func stopInstance(x *torture, d drawnFault) string {
	m := x.members[d.target]
	x.load.awaitMore(1)
	x.checkNotEnded(m)
	code := m.end(syscall.SIGTERM)
	late := x.concurrent(database|pipe|clients) && strings.Contains(m.lastLines(3), "context deadline exceeded")
	if code != 0 && !late {
		x.t.Errorf("%s exited with %d after SIGTERM:\n%s", m.name, code, m.lastLines(30))
	}
	x.sleep(d.hold)
	x.restart(m, x.concurrent(database|pipe))
	return ""
}

// restart starts an instance again. If mayFail is true, a server may be unreachable and end
// the start; then it is repeated.
func (x *torture) restart(m *instance, mayFail bool) {
	x.checkNotEnded(m)
	for until := time.Now().Add(patience); !m.alive(); x.sleep(time.Second) {
		err := m.tryStart()
		if err == nil {
			return
		}
		m.kill()
		if !mayFail || time.Now().After(until) {
			x.t.Errorf("%s does not start: %v", m.name, err)
			return
		}
	}
}

// freezeInstance stops an instance until the others have taken over its partitions, and resumes it
// with an old relay, old group members, open transactions, and requests of a tenant and of a key that have ended.
func freezeInstance(x *torture, d drawnFault) string {
	m := x.members[d.target]
	owners := func(n int) func(context.Context) bool {
		return func(ctx context.Context) bool {
			is := 0
			err := x.w.sql.QueryRow(ctx, `SELECT count(DISTINCT owner) FROM relay_cursors WHERE lease_until > now()`).Scan(&is)
			return err == nil && is == n
		}
	}
	if !becomesTrue(x.w, time.Minute, owners(len(x.members))) {
		return "not every instance had relay leases"
	}
	ended := x.newFrozenTenants(m)
	// By the end of the second most writes of all instances wait for the heads: the frozen instance gets them, in an open transaction.
	if err := x.whileHeld(pgx.ReadCommitted, `SELECT FROM log_heads ORDER BY partition FOR UPDATE`, func() {
		ended.send(m)
		x.sleep(time.Second)
		m.signal(syscall.SIGSTOP)
	}); err != nil {
		return err.Error()
	}
	defer ended.check()
	defer m.signal(syscall.SIGCONT)
	for _, tenant := range x.w.tenants[:len(x.w.tenants)-1] { // the last one's usage may be rejected
		from := tenant.ledger.acked()
		if !becomesTrue(x.w, patience, func(context.Context) bool { return tenant.ledger.acked() > from }) {
			return "a tenant waits for the heads of the frozen instance"
		}
	}
	ended.end(x.members[(d.target+1)%len(x.members)])
	x.sleep(d.hold)
	if !becomesTrue(x.w, time.Minute, owners(len(x.members)-1)) || !x.joined((len(x.members)-1)*len(groups())) {
		return "the others did not take over its partitions"
	}
	return ""
}

// joined waits until the groups have n members.
func (x *torture) joined(n int) bool {
	return becomesTrue(x.w, patience, func(ctx context.Context) bool { return groupMembers(ctx, x.w) == n })
}

// disconnectClients runs clients that close or reset their connections at any moment of a request and of its answer. The ledger has no
// event of a request that was sent in part: none may be stored.
func disconnectClients(x *torture, d drawnFault) string {
	rng := rand.New(rand.NewPCG(d.seed, 1))
	from := &source{rng: rng, mix: mix{rejections: 3, batch: 20}, name: fmt.Sprintf("gone%d", x.now.number)}
	tenant := x.w.tenants[rng.IntN(len(x.w.tenants))]
	whole, parts := 0, 0
	for start := time.Now(); (time.Since(start) < d.hold || whole*parts == 0) &&
		x.t.Context().Err() == nil; x.sleep(20 * time.Millisecond) {
		m := x.members[rng.IntN(len(x.members))]
		if x.sendAndDisconnect(rng, m.clients.addr(), tenant, from.batch()) {
			whole++
		} else {
			parts++
		}
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
func stormOfMembers(x *torture, _ drawnFault) string {
	const consuming = "validator,aggregator,deadletter"
	others := len(x.members) * len(groups())
	zombie := x.w.serve(consuming)
	if !x.joined(others + 3) {
		return "the member to freeze has no partition"
	}
	zombie.signal(syscall.SIGSTOP)
	var storm sync.WaitGroup
	for n := range 2 {
		i := x.w.prepare(consuming)
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
	ended := x.joined(others)
	zombie.signal(syscall.SIGCONT)
	back := x.joined(others + 3)
	x.load.awaitMore(50)
	zombie.stop()
	if !ended || !back {
		return fmt.Sprintf("the session of the frozen member ended: %t, it came back: %t", ended, back)
	}
	return ""
}

// offsetsToStart sets the offsets of all groups to the beginning: they are the groups' only state in Kafka, which the log does not need.
func offsetsToStart(x *torture, _ drawnFault) string {
	x.load.awaitMore(50)
	if !becomesTrue(x.w, time.Minute, func(ctx context.Context) (found bool) {
		c := x.w.kafka()
		defer c.Close()
		offsets, err := kadm.NewClient(c).FetchOffsets(ctx, x.w.prefix+"meterplex-usage-validator")
		offsets.Each(func(o kadm.OffsetResponse) { found = found || o.At > 0 })
		return err == nil && found
	}) {
		return "the validator's group committed no offset"
	}
	x.endAll(syscall.SIGTERM)
	return x.resetOffsets(false)
}

func offsetsToEnd(x *torture, _ drawnFault) string {
	x.load.awaitMore(50)
	x.endAll(syscall.SIGKILL) // with many uncommitted records
	return x.resetOffsets(true)
}

func (x *torture) resetOffsets(toEnd bool) (why string) {
	if moveOffsets(x.w, toEnd) == 0 {
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
	consumer := []string{usageCommandsGroup, "meterplex-usage-aggregator"}[d.seed%2]
	x.load.awaitMore(20)
	for n, ask := range []object{
		{"consumer": consumer, "to": "start"},
		{"topic": "usage.raw", "fromTime": time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)},
	} {
		path := []string{"/api/v1/replays/rewind", "/api/v1/replays"}[n]
		var answer replayed
		if !x.operate(ctx, workReplays, path, ask, &answer) {
			return path + " was refused"
		}
		becomesTrue(x.w, time.Minute, func(ctx context.Context) bool {
			status, _ := x.attempt(ctx, x.w.operator, http.MethodGet, "/api/v1/replays/"+answer.ID, nil, &answer)
			return status == http.StatusOK && answer.State != "RUNNING" && answer.Remaining == 0
		})
		if answer.State != "DONE" {
			return fmt.Sprintf("%s: %+v", path, answer)
		}
	}
	return ""
}
