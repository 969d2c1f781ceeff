package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/commands/metering"
)

// The scheduler of the simulation. Every effect of a process on the outside world is an
// ask. It waits until the scheduler, which runs while all others wait, picks it, decides
// its fate by the seed's random numbers, and applies the effect.

// operationKind says which faults an operation can have.
type operationKind int

const (
	kindSure    operationKind = iota // none: the simulation itself asks
	kindStep                         // of a transaction: the connection may be lost
	kindCommit                       // the answer may be lost, and the effect may happen, or not, now or later
	kindAuto                         // a statement by itself: the answer may be lost
	kindProduce                      // the request or the answer may be lost, or come true in part
	kindFetch                        // records may come twice, in another order, damaged or not at all
)

// opOutcome is the outcome of an operation.
type opOutcome int

const (
	succeeds opOutcome = iota
	cut                // lost on its way: no effect, and an error
	unanswered
	answeredLater // no answer, and its end comes later
	partly
	crashBefore
	crashAfter
	timesOut
	outcomes
)

var (
	errCut  = errors.New("simulated: the connection was lost")
	errDead = &pgconn.PgError{Code: "XX000", Message: "simulated: the process is dead"}
	errLock = &pgconn.PgError{Code: "55P03", Message: "simulated: lock timeout"}
)

type operation struct {
	p      *proc
	what   string
	kind   operationKind
	tx     *simTx // that holds the locks
	locks  []rowLock
	ready  func() bool // nil: always
	until  time.Time   // it is ready then, whatever ready says
	since  time.Time
	effect func(f opOutcome) error
	starts func() // of the simulation's: the process that it begins
	answer chan error
}

// proc is a process: a crash ends all of it at once.
type proc struct {
	s      *sim
	name   string
	ctx    context.Context
	cancel context.CancelFunc
	dead   atomic.Bool
	frozen time.Time
	open   []*simTx
	onKill func()
	start  func() // another one in its place
	life   int    // how many were before it
	ids    atomic.Uint64
}

// faultRates holds the rate of each fault, in thousandths of the operations that it can affect.
type faultRates struct {
	crash, cut, lost, limbo, partly, freeze, pass int
	twice, shuffle, drop, damage, rewind, skip    int
	retries, rebuilds, rewinds, restores          int // whether there are any
	failovers, moves                              int
}

func (w *faultRates) rates() []*int {
	return []*int{&w.crash, &w.cut, &w.lost, &w.limbo, &w.partly, &w.freeze, &w.pass, &w.twice, &w.shuffle, &w.drop, &w.damage, &w.rewind,
		&w.skip,
		&w.retries, &w.rebuilds, &w.rewinds, &w.restores, &w.failovers, &w.moves}
}

type sim struct {
	seed     uint64
	rng      *rand.Rand
	mu       sync.Mutex // of operations and of the simulation; held by the scheduler while it acts
	asks     []*operation
	w        faultRates
	calm     bool
	db       *simDB
	pipe     *simPipe
	procs    []*proc
	lives    int
	wait     sync.WaitGroup
	began    time.Time
	steps    int
	counting sync.Mutex
	counts   map[string]int
	trace    []string
	tell     bool
	broken   error
	plan     plan
	model    *model
	doors    []*metering.IngestUsage
	tasks    []func(*sim, *proc) bool // that somebody is to do
	retrying bool                     // there is a command router
	changing bool                     // plans change, and decisions read them through the cache of the service
	life     int                      // of the server: how often it was set back
	backups  []simTables
	again    map[int16]int64 // from where on the relay is sent back
	stopped  []func()        // processes that a restore ended, to be started again
}

// chance is true so many times in a thousand.
func (s *sim) chance(perMille int) bool { return perMille > 0 && s.rng.IntN(1000) < perMille }

func (s *sim) count(what string) {
	s.counting.Lock()
	defer s.counting.Unlock()
	s.counts[what]++
}

// fail notes the first thing that is not as it must be.
func (s *sim) fail(format string, args ...any) {
	if s.broken == nil {
		s.broken = fmt.Errorf(format, args...)
	}
}

func (s *sim) newProc(name string) *proc {
	p := &proc{s: s, name: name, life: s.lives}
	s.lives++
	p.ctx, p.cancel = context.WithCancel(context.Background())
	s.procs = append(s.procs, p)
	return p
}

// newID returns a unique id; its value has no meaning.
func (p *proc) newID() uuid.UUID {
	return uuid.NewSHA1(uuid.Nil, fmt.Append(nil, p.name, "/", p.life, "/", p.ids.Add(1)))
}

func (p *proc) run(f func()) { p.s.wait.Go(f) }

// do waits for the scheduler, which applies the effect under sim.mu.
func (p *proc) do(a *operation) error {
	a.p, a.since, a.answer = p, time.Now(), make(chan error, 1)
	p.s.mu.Lock()
	if p.dead.Load() {
		p.s.mu.Unlock()
		return errDead
	}
	p.s.asks = append(p.s.asks, a)
	p.s.mu.Unlock()
	return <-a.answer
}

// idle waits until there is something to do, or for a while; false where the process is dead.
func (p *proc) idle(what string, longest time.Duration, ready func() bool) bool {
	return p.do(&operation{what: what, ready: ready, until: time.Now().Add(longest)}) == nil
}

// lockWait is the longest that a statement waits for a lock.
const lockWait = 2 * time.Second

func (s *sim) isReady(a *operation, now time.Time) bool {
	if now.Before(a.p.frozen) {
		return false
	}
	if a.ready != nil && !a.ready() && now.Before(a.until) {
		return false
	}
	return s.db.free(a.tx, a.locks) || now.Sub(a.since) >= lockWait
}

// pick removes and returns one of the operations that can proceed, or nil.
func (s *sim) pick(now time.Time) *operation {
	slices.SortStableFunc(s.asks, func(a, b *operation) int {
		if c := strings.Compare(a.p.name, b.p.name); c != 0 {
			return c
		}
		return strings.Compare(a.what, b.what)
	})
	var ready []int
	for i, a := range s.asks {
		if s.isReady(a, now) {
			ready = append(ready, i)
		}
	}
	if len(ready) == 0 {
		return nil
	}
	i := ready[s.rng.IntN(len(ready))]
	a := s.asks[i]
	s.asks = slices.Delete(s.asks, i, i+1)
	return a
}

// maxSteps and longest bound a run: one that does not come to rest has failed.
const (
	maxSteps = 20_000
	longest  = 10 * time.Minute
)

// schedule runs the simulation until it has come to rest in calm conditions.
func (s *sim) schedule() {
	for s.broken == nil {
		synctest.Wait()
		s.mu.Lock()
		if !s.calm && s.model.done() {
			s.calm, s.w = true, faultRates{}
			for _, p := range s.procs {
				p.frozen = time.Time{}
			}
		}
		if s.calm && s.settled() {
			s.mu.Unlock()
			return
		}
		if s.w.restores+s.w.failovers > 0 && s.chance(10) || s.steps == 0 {
			s.backups = append(s.backups, s.db.simTables.clone())
		}
		if s.steps++; s.steps > maxSteps || time.Since(s.began) > longest {
			s.fail("it did not come to rest in %d steps and %v: %s", s.steps, time.Since(s.began), s.positions())
		}
		a := s.pick(time.Now())
		pause := time.Duration(0)
		switch {
		case a == nil:
			pause = 20 * time.Millisecond << s.rng.IntN(5)
		default:
			s.perform(a)
			if s.chance(s.w.pass) {
				pause = time.Millisecond << s.rng.IntN(12)
			}
		}
		s.mu.Unlock()
		if pause > 0 {
			time.Sleep(pause)
		}
	}
}

// draw decides the fate of an operation.
func (s *sim) draw(a *operation) opOutcome {
	w := &s.w
	if len(a.locks) > 0 && !s.db.free(a.tx, a.locks) {
		return timesOut
	}
	switch {
	case a.kind == kindSure:
		return succeeds
	case s.chance(w.crash):
		if s.rng.IntN(2) == 0 {
			return crashBefore
		}
		return crashAfter
	case s.chance(w.cut):
		return cut
	case a.kind >= kindCommit && a.kind != kindFetch && s.chance(w.lost):
		return unanswered
	case a.kind == kindCommit && s.chance(w.limbo):
		return answeredLater
	case a.kind == kindProduce && s.chance(w.partly):
		return partly
	}
	return succeeds
}

var outcomeNames = [outcomes]string{"", "cut", "unanswered", "limbo", "partly", "crash before", "crash after", "lock timeout"}

// perform applies the effect of an operation and answers it.
func (s *sim) perform(a *operation) {
	f := s.draw(a)
	s.note(a, f)
	var err error
	switch f {
	case succeeds, partly:
		err = a.perform(f)
	case timesOut:
		err = errLock
	case cut:
		err = errCut
		a.tx.lose()
	case unanswered, answeredLater:
		if err = a.perform(f); err == nil {
			err = errCut
		}
		a.tx.lose()
	case crashBefore:
		s.kill(a.p)
		err = errDead
	case crashAfter:
		_ = a.perform(f)
		s.kill(a.p)
		err = errDead
	}
	if err == nil && s.chance(s.w.freeze) && a.kind != kindSure {
		s.count("frozen")
		a.p.frozen = time.Now().Add(time.Duration(s.rng.IntN(12_000)) * time.Millisecond)
		for _, tx := range slices.Clone(a.p.open) { // the server ends sessions that are idle in a transaction
			tx.lose()
		}
	}
	a.answer <- err
}

func (a *operation) perform(f opOutcome) error {
	a.p.s.db.take(a.tx, a.locks)
	if a.effect == nil {
		return nil
	}
	return a.effect(f)
}

// note adds a step to the trace.
func (s *sim) note(a *operation, f opOutcome) {
	if f != succeeds {
		s.count(outcomeNames[f])
	}
	if s.tell {
		s.trace = append(s.trace, fmt.Sprintf("%5d %10v %-12s %s %s", s.steps, time.Since(s.began), a.p.name, a.what, outcomeNames[f]))
	}
}

// kill ends a process: its operations get no answer, and the server rolls back its open
// transactions. Another process is started in its place after a while.
func (s *sim) kill(p *proc) {
	if p.dead.Load() {
		return
	}
	p.dead.Store(true)
	p.cancel()
	for _, tx := range slices.Clone(p.open) {
		tx.lose()
	}
	s.asks = slices.DeleteFunc(s.asks, func(a *operation) bool {
		if a.p == p {
			a.answer <- errDead
		}
		return a.p == p
	})
	s.procs = slices.DeleteFunc(s.procs, func(o *proc) bool { return o == p })
	if p.onKill != nil {
		p.onKill()
	}
	if p.start != nil {
		s.begin(p.name, p.start)
	}
}

// begin starts a process after a while.
func (s *sim) begin(name string, start func()) {
	s.later("start of "+name, time.Duration(s.rng.IntN(8000))*time.Millisecond, start)
	s.asks[len(s.asks)-1].starts = start
}

// later lets the simulation do something by itself.
func (s *sim) later(what string, in time.Duration, f func()) {
	at := time.Now().Add(in)
	world := &proc{s: s, name: "world"}
	s.asks = append(s.asks, &operation{
		p: world, what: what, since: at, until: at, ready: func() bool { return s.calm }, answer: make(chan error, 1),
		effect: func(opOutcome) error { f(); return nil },
	})
}
