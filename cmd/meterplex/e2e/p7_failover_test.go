package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// P7: after a failover to a synchronous standby each answered request gets its first answer again, byte for byte. Requests without
// an answer, because the primary died or the standby was away, are decided by the data of the standby: the limit is granted exactly.
func TestP7_RepeatsAfterAFailoverGetTheFirstAnswer(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	p := newServerPair(t)
	w := newDeploymentAt(t, p.url(), p.adminURL())
	w.pipe = "postgres"
	a, b := w.serve(""), w.serve("api")
	w.limitedPlans(a)
	x := w.limitedTenant(a, b)
	p.attach()
	p.synchronous(true)
	all := append(firstAnswers("kept"), consumeOf("most", 850))
	for _, r := range all {
		w.mustSend(x, r, r.granting(), a)
	}
	sent := w.overAFailover(p, x, a, b)
	lost := 0
	for _, r := range sent {
		lost += r.lost
		if r.granted(t) {
			all = append(all, r)
		}
	}
	t.Logf("%d requests, of which %d were answered by a grant; %d times there was no answer", len(sent), len(all), lost)
	w.answersAgain("after the failover", x, all, a)
	w.answersAgain("after the failover", x, all, b)
	states := w.fold(x)
	last := states[len(states)-1]
	if last.used+last.held != unitLimit || len(states)-1 != len(all) {
		t.Errorf("%d used and %d held of %d, by %d events for %d requests", last.used, last.held, unitLimit, len(states)-1, len(all))
	}
	w.checkAccount(b, x, states)
	if !a.alive() || !b.alive() {
		t.Error("an instance ended with its database")
	}
}

// overAFailover asks for more than the limit while the standby goes away and comes back, and the primary is killed and replaced.
func (w *deployment) overAFailover(p *serverPair, x *tenant, a, b *instance) (sent []*request) {
	w.t.Helper()
	rng := rand.New(rand.NewPCG(w.seed, 70))
	var clients sync.WaitGroup
	var mu sync.Mutex
	full := make(chan struct{})
	var once sync.Once
	for c := range 16 {
		clients.Go(func() {
			for n := 0; ; n++ {
				r := consumeOf(fmt.Sprint("over-", c, "-", n), 1)
				if !w.send(x, r, []*instance{a, b}[c%2], []*instance{b, a}[c%2]) {
					return
				}
				mu.Lock()
				sent = append(sent, r)
				mu.Unlock()
				if !r.granted(w.t) {
					once.Do(func() { close(full) })
					return
				}
				select {
				case <-w.t.Context().Done():
					return
				case <-full: // the last units are gone
				case <-time.After(200 * time.Millisecond):
				}
			}
		})
	}
	time.Sleep(time.Duration(100+rng.IntN(300)) * time.Millisecond)
	if rng.IntN(2) == 0 { // no request is answered meanwhile
		p.link.set(cuts)
		time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
	}
	p.killPrimary()
	p.promote(false)
	w.noteRecovery(p.lostByFailover())
	clients.Wait()
	return sent
}
