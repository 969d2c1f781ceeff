package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// scope is the set of components that a fault affects. The faults of one round have disjoint scopes.
type scope uint

const (
	processes scope = 1 << iota
	database
	pipe
	clients
	allScopes = processes | database | pipe | clients
)

// fault is a row of the table of faults.
type fault struct {
	name     string
	promise  string // that it must not break
	scope    scope
	atMost   int           // in a run; 0: no limit
	full     bool          // in the full form only
	from, to time.Duration // how long it is held
	// reach begins the fault, holds it and ends it; the round restarts processes. It returns "" if the fault was reached, else the reason.
	reach func(x *torture, d drawnFault) (why string)
}

// Each fault of the table, alone: every acknowledged event is stored and counted once, and the service has recovered within 30 s.
func TestFaults(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	x := newTorture(t, 3)
	p := newPlan(x.w.seed, len(x.members), len(x.w.brokers()), x.long, 0.3)
	for _, f := range p.faults {
		t.Logf("%s, %s", f.promise, f.name)
		if x.round(p.round(f)); t.Failed() {
			break
		}
	}
	x.final()
}

// drawnFault is a fault of a round.
type drawnFault struct {
	*fault
	after  time.Duration
	hold   time.Duration
	target int // instance; faults of processes and faults between processes hit different ones
	all    bool
	seed   uint64
}

func (d drawnFault) String() string {
	target := ""
	switch {
	case strings.Contains(d.name, ":") && d.all:
		target = "for all instances, "
	case strings.Contains(d.name, ":") || d.scope == processes:
		target = fmt.Sprintf("instance %d, ", d.target+1)
	}
	return fmt.Sprintf("%s (%safter %s, for %s)", d.name, target, d.after.Round(time.Millisecond), d.hold.Round(time.Millisecond))
}

// round is a set of faults and a load that run at once. The same seed draws the same rounds.
type round struct {
	number int
	faults []drawnFault
	mix    mix
	each   int // clients of each tenant
	seed   uint64
}

// plan draws the rounds. Each fault is drawn once before any is drawn again.
type plan struct {
	rng       *rand.Rand
	faults    []*fault
	deck      []*fault
	drawn     map[*fault]int
	instances int
	scale     float64
	rounds    int
}

func newPlan(seed uint64, instances, brokers int, long bool, scale float64) *plan {
	p := &plan{rng: rand.New(rand.NewPCG(seed, 8)), drawn: map[*fault]int{}, instances: instances, scale: scale}
	for _, f := range faults(brokers) {
		if long || !f.full {
			p.faults = append(p.faults, f)
		}
	}
	return p
}

func (p *plan) shuffle() {
	more := slices.Clone(p.faults)
	p.rng.Shuffle(len(more), func(i, j int) { more[i], more[j] = more[j], more[i] })
	for _, k := range more {
		if k.atMost == 0 || p.drawn[k] < k.atMost {
			p.drawn[k]++
			p.deck = append(p.deck, k)
		}
	}
}

// next draws a round of two to four faults with disjoint scopes.
func (p *plan) next() round {
	most, taken := 2+p.rng.IntN(3), scope(0)
	if len(p.deck) < 6 {
		p.shuffle()
	}
	var drawn []*fault
	for n := 0; n < len(p.deck) && len(drawn) < most; {
		f := p.deck[n]
		if f.scope&taken != 0 {
			n++
			continue
		}
		taken |= f.scope
		p.deck = slices.Delete(p.deck, n, n+1)
		drawn = append(drawn, f)
	}
	return p.round(drawn...)
}

// round draws the load, the targets and the times of a round of faults.
func (p *plan) round(faults ...*fault) round {
	p.rounds++
	r := round{number: p.rounds, seed: p.rng.Uint64(), each: 1 + p.rng.IntN(3)}
	target := p.rng.IntN(p.instances)
	for _, f := range faults {
		r.faults = append(r.faults, p.draw(f, target))
	}
	r.mix = mix{
		duplicates: 5 + p.rng.IntN(35), conflicts: p.rng.IntN(6), rejections: p.rng.IntN(6),
		batch: []int{1, 3, 12, 40, 150}[p.rng.IntN(5)],
	}
	// The rate of events is about the same for every batch size: their variety matters.
	r.mix.pause = time.Duration(r.mix.batch*r.each) * 20 * time.Millisecond
	r.mix.pause = min(max(r.mix.pause, 40*time.Millisecond), 1500*time.Millisecond)
	return r
}

func (p *plan) draw(k *fault, target int) drawnFault {
	d := drawnFault{fault: k, seed: p.rng.Uint64(), all: p.rng.IntN(3) == 0, target: target}
	if k.scope&processes == 0 {
		d.target = (target + 1) % p.instances
	}
	scaled := func(at time.Duration) time.Duration { return time.Duration(float64(at) * p.scale) }
	d.after = time.Duration(p.rng.Int64N(int64(scaled(3 * time.Second))))
	d.hold = scaled(k.from)
	if k.to > k.from {
		d.hold += time.Duration(p.rng.Int64N(int64(scaled(k.to - k.from))))
	}
	return d
}

// faults returns the table of faults, of one broker or of three.
func faults(brokers int) []*fault {
	const s = time.Second
	all := []*fault{
		{"an instance is killed", "P1, P2", processes, 0, false, s / 2, 3 * s, killInstance},
		{"all instances are killed at once", "P1, P2", allScopes &^ clients, 0, false, s / 2, 2 * s, killAll},
		{"an instance is stopped by SIGTERM", "P1, P2", processes, 0, false, s / 2, 3 * s, stopInstance},
		{"an instance is frozen past its leases and sessions, and resumes", "P1, P2", allScopes &^ clients, 0, true,
			15 * s, 25 * s, freezeInstance},
		{"members join and leave the groups, and are killed, beside a frozen one", "P2", allScopes &^ clients, 0, true,
			s, s, stormOfMembers},
		{"groups' offsets are set to the beginning", "P2", allScopes, 2, true, s, s, offsetsToStart},
		{"groups' offsets are set to the end", "P2", allScopes, 2, true, s, s, offsetsToEnd},
		{"a consumer is rewound, and a range is published again", "P2", processes | pipe, 0, true, s, s, rewindConsumers},

		{"the postmaster is killed", "P1, P2", database, 0, false, s / 2, 5 * s, killPostmaster},
		{"a session of the database is killed, and all others end", "P1, P2", database, 0, false, s, s, killSession},
		{"the standby is promoted while records are unread", "P1, P2", database, 0, true, s / 2, 3 * s, promoteStandbyUnread},
		{"the standby is away, and the primary is lost", "P1", database, 0, true, s / 4, s, losePrimary(func(*torture, drawnFault) {})},
		{"the standby is away, and the primary crashes, recovers and is lost", "P1", database, 0, true, s / 4, s,
			losePrimary(func(x *torture, _ drawnFault) { x.w.servers.crash() })},
		{"the standby is away, a session of the primary is killed, and the primary is lost", "P1", database, 0, true, s / 4, s,
			losePrimary(func(x *torture, _ drawnFault) { x.w.servers.crashBackend() })},
		{"the standby is away, each wait for it is cancelled, and the primary is lost", "P1", database, 0, true, s, 2 * s,
			losePrimary(func(x *torture, d drawnFault) { x.w.servers.whileCancelled(func() { x.sleep(time.Second + d.hold) }) })},
		{"the standby cannot be reached", "P1, P2", database, 0, true, s, 8 * s, detachStandby},
		{"all of the database's sessions are ended", "P1, P2", database, 0, false, s, 3 * s, endAllBackends},
		{"random sessions of the database are ended", "P1, P2", database, 0, false, 3 * s, 8 * s, endSomeBackends},
		{"head rows are held by another session", "P1, P2", database, 0, false, 3 * s, 6 * s, holdHeads},
		{"another session is idle in a transaction, a third has a long read", "P1, P2", database, 0, false,
			5 * s, 20 * s, idleInTransaction},
		{"database: connections are cut", "P1, P2", database, 0, false, s, 8 * s, onDatabase(cuts)},
		{"database: connections hang", "P1, P2", database, 0, false, s, 15 * s, onDatabase(stalls)},
		{"database: half open", "P1, P2", database, 0, false, s, 20 * s, onDatabase(halfOpen)},
		{"database: answers vanish", "P1, P2", database, 0, false, s, 15 * s, onDatabase(dropsAnswers)},
		{"database: one byte at a time", "P1, P2", database, 0, false, 3 * s, 10 * s, onDatabase(trickles)},
		{"database: COMMIT never arrives", "P1, P2", database, 0, false, 3 * s, 8 * s, onDatabase(losesCommits)},
		{"database: COMMIT's answer is lost", "P1, P2", database, 0, false, 3 * s, 8 * s, onDatabase(losesCommitAnswers)},

		{"the broker is killed", "P11", pipe, 0, false, s / 4, s / 2, killBroker},
		{"the broker is down", "P11", pipe, 0, true, 10 * s, 60 * s, stopBroker},
		{"topics are deleted", "P11", allScopes &^ clients, 1, true, s, 3 * s, deleteTopics},
		{"the broker loses its data, one command fills it again", "P11", allScopes &^ clients, 2, true, s, 3 * s, wipeAndRefillBroker},
		{"broker: connections are cut", "P11", pipe, 0, false, s, 10 * s, onPipe(cuts)},
		{"broker: connections hang", "P11", pipe, 0, false, s, 15 * s, onPipe(stalls)},
		{"broker: half open", "P11", pipe, 0, false, s, 20 * s, onPipe(halfOpen)},
		{"broker: answers vanish", "P11", pipe, 0, false, s, 15 * s, onPipe(dropsAnswers)},
		{"broker: one byte at a time", "P11", pipe, 0, false, 3 * s, 10 * s, onPipe(trickles)},

		{"clients: connections are cut", "P1, P2", clients, 0, false, s, 3 * s, onClients(cuts)},
		{"clients: answers vanish", "P1, P2", clients, 0, false, s, 5 * s, onClients(dropsAnswers)},
		{"clients disconnect at any microsecond", "P1, P2", clients, 0, false, 3 * s, 8 * s, disconnectClients},
	}
	if brokers < copies {
		return all
	}
	return append(all, []*fault{
		{"the leader of every partition moves", "P11", pipe, 0, false, s, 3 * s, onBrokers(moveLeaders)},
		{"one of three brokers is rolled", "P11", pipe, 0, false, s, 5 * s, onBrokers(rollBroker)},
		{"one of three brokers is killed", "P11", pipe, 0, false, s, 5 * s, onBrokers(crashBroker)},
		{"two of three brokers are stopped", "P11", pipe, 0, true, s, 10 * s, onBrokers(stopMost)},
	}...)
}

// onBrokers applies a fault of three brokers to the one that the seed draws.
func onBrokers(fault func(w *deployment, n int, while func()) string) func(*torture, drawnFault) string {
	return func(x *torture, d drawnFault) string {
		return fault(x.w, int(d.seed%copies), func() {
			x.sleep(d.hold)
			x.load.awaitMore(1)
		})
	}
}
