// Package seats divides a few connections of the database among tenants and operators. A request waits for a seat, and loses it to another
// tenant if it holds it for long: so any number of tenants with slow requests leaves seats to the others.
package seats

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Errors of requests that should be sent again later.
var (
	ErrBusy  = errors.New("no seat became free in time")
	ErrEnded = errors.New("the request was ended: it held its seat for long, and another tenant waits for it")
)

// slice is how long each request may hold a seat. Afterwards it holds it only while nobody waits who used seats less.
// It is a quarter of the patience of requests, and longer than a page of the slowest list.
const slice = 250 * time.Millisecond

// lookEvery is how often a request that waits looks for a request to end.
const lookEvery = slice / 5

// A tenant pays for its seats: each second on one puts its turn back by seatCost seconds, up to longestDebt after now. A tenant that uses
// less than
// 1/seatCost of a seat owes nothing, so it is served before those that use more, up to seatCost of them for each seat.
const (
	seatCost    = 64
	longestDebt = 10 * time.Minute
)

// Config bounds seats.
type Config struct {
	All       int           // of all requests; tenants leave one to operators, if there are two
	Operators int           // of all operators and the service together: their requests are never ended
	Heavy     int           // of heavy requests, which are among all
	Patience  time.Duration // how long a request waits
}

// Seats are connections that requests share. A tenant takes one more if it holds at most half of the seats that the others leave
// to tenants, rounded up: the rule of http/admission.Bound for a resource of few units, of which the last one is taken, too. A tenant that
// waits while no seat is left ends the longest request of the tenant that used seats most, if it used them less itself.
type Seats struct {
	Config
	mu      sync.Mutex
	running []*request
	waiting []*request              // in the order of their arrival
	paid    map[uuid.UUID]time.Time // the turn of each tenant after its last request; before now: it owes nothing
	sweepAt int                     // the number of turns at which those in the past are deleted
}

// request holds a seat, or waits for one.
type request struct {
	tenant uuid.UUID // Nil: operators
	heavy  bool
	began  time.Time // zero: it waits
	ready  chan struct{}
	end    context.CancelCauseFunc
	ended  bool
}

// New returns free seats.
func New(c Config) *Seats {
	c.All, c.Operators, c.Heavy = max(1, c.All), max(1, c.Operators), max(1, c.Heavy)
	return &Seats{Config: c, paid: map[uuid.UUID]time.Time{}}
}

// Acquire waits for a seat for a request by a key of a tenant, or of an operator or the service (Nil). It fails with ErrBusy, or with the
// error of the context. The request runs with the context that Acquire returns, whose cause is ErrEnded after the request lost its seat. It
// calls leave after it returned its connection.
func (s *Seats) Acquire(ctx context.Context, tenant uuid.UUID, heavy bool) (seated context.Context, leave func(), err error) {
	seated, end := context.WithCancelCause(ctx)
	r := &request{tenant: tenant, heavy: heavy, ready: make(chan struct{}), end: end}
	s.mu.Lock()
	s.waiting = append(s.waiting, r)
	s.seat(time.Now())
	s.mu.Unlock()
	leave = func() { s.leave(r); end(nil) }
	if err := s.await(ctx, r); err != nil {
		leave()
		return nil, nil, err
	}
	return seated, leave, nil
}

// InUse counts the requests that hold a seat or wait for one.
func (s *Seats) InUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.running) + len(s.waiting)
}

// Held counts the requests that hold a seat.
func (s *Seats) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.running)
}

func (s *Seats) await(ctx context.Context, r *request) error {
	soon, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	for {
		select {
		case <-r.ready:
			return nil
		default:
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case soon.Err() != nil:
			return ErrBusy
		}
		s.makeRoom(r)
		select {
		case <-r.ready:
		case <-soon.Done():
		case <-time.After(lookEvery):
		}
	}
}

// leave gives a seat back, or ends the wait for one.
func (s *Seats) leave(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if r.began.IsZero() {
		s.waiting = without(s.waiting, r)
		return
	}
	s.running = without(s.running, r)
	turn := later(s.paid[r.tenant], now).Add(seatCost * now.Sub(r.began))
	if most := now.Add(longestDebt); turn.After(most) {
		turn = most
	}
	if r.tenant != uuid.Nil {
		s.paid[r.tenant] = turn
	}
	if len(s.paid) > s.sweepAt {
		for tenant, turn := range s.paid {
			if turn.Before(now) {
				delete(s.paid, tenant)
			}
		}
		s.sweepAt = 2*len(s.paid) + 16
	}
	s.seat(now)
}

// turn orders tenants: the earlier it is, the less the tenant used seats. It includes the requests that run. Operators have the first turn,
// and few seats.
func (s *Seats) turn(tenant uuid.UUID, now time.Time) time.Time {
	if tenant == uuid.Nil {
		return time.Time{}
	}
	turn := later(s.paid[tenant], now)
	for _, r := range s.running {
		if r.tenant == tenant {
			turn = turn.Add(seatCost * now.Sub(r.began))
		}
	}
	return turn
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// seat gives free seats to the requests that wait, by their tenants' turns.
func (s *Seats) seat(now time.Time) {
	for {
		var next *request
		var turn time.Time
		for _, r := range s.waiting {
			if t := s.turn(r.tenant, now); (next == nil || t.Before(turn)) && s.fits(r, nil) {
				next, turn = r, t
			}
		}
		if next == nil {
			return
		}
		next.began = now
		s.waiting = without(s.waiting, next)
		s.running = append(s.running, next)
		close(next.ready)
	}
}

// makeRoom ends a request if that lets another one run which has waited for its seat, and whose tenant used seats less.
func (s *Seats) makeRoom(waits *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !waits.began.IsZero() {
		return
	}
	now := time.Now()
	var last *request
	latest := s.turn(waits.tenant, now)
	for _, r := range s.running {
		if r.ended && s.fits(waits, r) {
			return // its seat becomes free soon
		}
		if turn := s.turn(r.tenant, now); now.Sub(r.began) >= slice && turn.After(latest) && s.fits(waits, r) {
			last, latest = r, turn
		}
	}
	if last != nil {
		last.ended = true
		last.end(ErrEnded)
	}
}

// fits reports whether a request may run, or may if another one is gone.
func (s *Seats) fits(r, gone *request) bool {
	var all, tenants, heavy, own, ownHeavy int
	for _, other := range s.running {
		if other == gone {
			continue
		}
		all++
		if other.tenant != uuid.Nil {
			tenants++
		}
		if other.tenant == r.tenant {
			own++
		}
		if other.heavy {
			heavy++
			if other.tenant == r.tenant {
				ownHeavy++
			}
		}
	}
	switch {
	case all >= s.All || r.heavy && heavy >= s.Heavy:
		return false
	case r.tenant == uuid.Nil:
		return own < s.Operators && (!r.heavy || ownHeavy < max(1, s.Operators/2))
	}
	return half(own, tenants, max(1, s.All-1)) && (!r.heavy || half(ownHeavy, heavy, s.Heavy))
}

// half reports whether one more is at most half of the seats that the others leave, rounded up.
func half(own, used, limit int) bool { return own+1 <= (limit-(used-own)+1)/2 }

func without(list []*request, r *request) []*request {
	return slices.DeleteFunc(list, func(other *request) bool { return other == r })
}
