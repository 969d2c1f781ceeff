package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// precedingFault is a fault of the primary or the standby that precedes the loss of the primary.
type precedingFault struct {
	name string
	do   func(r *failoverTest, pause time.Duration)
}

// precedingFaults are the ways to lose a primary. In all but the first, commits wait for a standby
// that cannot be reached, and must not be answered.
func precedingFaults() []precedingFault {
	away := func(then func(r *failoverTest, pause time.Duration)) func(*failoverTest, time.Duration) {
		return func(r *failoverTest, pause time.Duration) {
			r.servers.link.set(cuts)
			time.Sleep(pause)
			then(r, pause)
			time.Sleep(pause)
		}
	}
	return []precedingFault{
		{"it is killed", func(*failoverTest, time.Duration) {}},
		{"the standby is away, and it is killed", away(func(*failoverTest, time.Duration) {})},
		{"the standby is away, it crashes and recovers, and is killed", away(func(r *failoverTest, _ time.Duration) { r.servers.crash() })},
		{"the standby is away, a session crashes, and it is killed", away(func(r *failoverTest, _ time.Duration) { r.servers.crashBackend() })},
		{"the standby is away, each wait for it is cancelled, and it is killed", away(func(r *failoverTest, pause time.Duration) {
			r.whileCancelled(func() { time.Sleep(time.Second + pause) })
		})},
	}
}

// P1: with a synchronous standby every event that was answered accepted or duplicate exists
// after a failover at any moment, also after a crash of the primary, a lost standby and a
// cancelled wait.
func TestP1_AnsweredEventsSurviveFailovers(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	r := newFailoverTest(t)
	r.other = r.serve("")
	tenants := append(r.createTenants(r.front, 3), r.tenant)
	r.awaitKeys(r.other, tenants)
	r.servers.attach()
	r.servers.synchronous(true)
	l := r.startLoad(tenants, 4, lightTraffic(), func(client int) string { return []*instance{r.front, r.other}[client%2].url() })
	rng := rand.New(rand.NewPCG(r.seed, 30))
	var deck []int
	for n := range 2 * len(precedingFaults()) {
		if len(deck) == 0 {
			deck = rng.Perm(len(precedingFaults()))
		}
		way := precedingFaults()[deck[0]]
		deck = deck[1:]
		events, pause, waiting := 1+rng.IntN(200), time.Duration(rng.IntN(500))*time.Millisecond, rng.IntN(2) == 0
		l.awaitMore(events)
		time.Sleep(pause)
		way.do(r, pause)
		r.servers.killPrimary()
		began := time.Now()
		r.servers.promote(waiting)
		lost := r.servers.lostByFailover()
		r.noteRecovery(lost)
		r.servers.link.set(passes)
		r.servers.attach()
		r.servers.synchronous(true)
		l.awaitMore(1)
		t.Logf("failover %d after %d events: %s; commits wait for the next standby: %t; %d events of the log were lost; events are accepted and on a standby again after %s",
			n+1, events, way.name, waiting, len(lost), time.Since(began).Round(time.Millisecond))
		if !r.front.alive() || !r.other.alive() {
			t.Fatal("an instance ended with its database")
		}
	}
	l.awaitMore(100)
	l.stop()
	t.Logf("%d events were answered, %d requests were not", l.acked(), l.lost())
	r.settle(r.front, tenants...)
	r.tenant = tenants[0]
	r.checkEpochRaised("promoted")
	r.prove()
}
