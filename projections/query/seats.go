package query

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// Seats divide the connections of a pool of reads, so that the reads of one tenant leave
// connections to all others. A read holds a seat of each bound that applies to it for as long
// as it holds a connection. The seats are never more than the connections: a read that has
// its seats has a connection.
//
// A read waits for the seats of its own reader first: while it does, it holds no seat that
// another reader needs.
type Seats struct {
	own     int   // of one reader
	heavy   seats // heavy reads of all readers
	tenants seats // reads of all tenants: operators always have a connection
	lists   seats // reads of all tenants and operators
	system  seats // reads of the installation itself
	checks  seats // loads behind entitlement checks

	mu      sync.Mutex
	readers map[uuid.UUID]*reader // those with a read that runs or waits; uuid.Nil: all operators
}

// ReservedSeats are the connections that lists cannot take: one for reads of the
// installation itself, the others for loads behind entitlement checks.
const ReservedSeats = 3

// kind is the class of reads that a read competes with.
type kind int8

const (
	ordinary kind = iota
	heavy         // folds or scans a part of the log: needs a processor rather than a connection
	system        // describes the installation; few rows, for operators
	check         // loads the data that an entitlement check is answered from
)

// reader is a tenant, or all operators.
type reader struct {
	seats seats
	heavy seats
	reads int // that run or wait
}

// NewSeats divides a number of connections; lists cannot take those that are reserved. One reader
// has a quarter of the connections, and half of these for heavy reads: with any number of
// them it keeps one processor busy, and its other reads are answered.
func NewSeats(connections, reserved int) *Seats {
	lists := max(1, connections-reserved)
	return &Seats{
		own: max(1, connections/4), heavy: newSeats(lists / 2), tenants: newSeats(lists - 1), lists: newSeats(lists),
		system: newSeats(1), checks: newSeats(reserved - 1), readers: make(map[uuid.UUID]*reader),
	}
}

// Reader takes a seat for a read by a key of a tenant, or by an operator (Nil). It refuses with ErrOverloaded. The caller calls leave after it returned the
// connection.
func (s *Seats) Reader(ctx context.Context, tenant uuid.UUID) (leave func(), err error) {
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if leave, err = s.acquire(soon, Viewer{TenantID: tenant, Operator: tenant == uuid.Nil}, ordinary); err != nil {
		return nil, refuseSeat(ctx, soon, err)
	}
	return leave, nil
}

// InUse counts the readers with a read that runs or waits, and the seats of reads without a
// reader. It is 0 when no read is under way.
func (s *Seats) InUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.readers) + len(s.heavy) + len(s.tenants) + len(s.lists) + len(s.system) + len(s.checks)
}

// acquire takes every seat that a read needs, or fails without one. It waits until the context ends.
func (s *Seats) acquire(ctx context.Context, v Viewer, k kind) (leave func(), err error) {
	switch {
	case s == nil:
		return func() {}, nil
	case k == system:
		return acquireAll(ctx, s.system)
	case k == check:
		return acquireAll(ctx, s.checks)
	}
	r, exit := s.enter(v)
	needed := append(make([]seats, 0, 5), r.seats)
	if k == heavy {
		needed = append(needed[:0], r.heavy, r.seats, s.heavy)
	}
	if !v.Operator {
		needed = append(needed, s.tenants)
	}
	release, err := acquireAll(ctx, append(needed, s.lists)...)
	if err != nil {
		exit()
		return nil, err
	}
	return func() { release(); exit() }, nil
}

// enter returns the reader of a viewer, which is forgotten after its last read called exit.
func (s *Seats) enter(v Viewer) (r *reader, exit func()) {
	id := v.TenantID
	if v.Operator {
		id = uuid.Nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r = s.readers[id]
	if r == nil {
		r = &reader{seats: newSeats(s.own), heavy: newSeats(s.own / 2)}
		s.readers[id] = r
	}
	r.reads++
	return r, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.reads--; r.reads == 0 {
			delete(s.readers, id)
		}
	}
}

// seats are a bound. Reads that wait are served in their order.
type seats chan struct{}

func newSeats(n int) seats { return make(seats, max(1, n)) }

// acquireAll takes one seat of each bound, in their order, or fails without one.
func acquireAll(ctx context.Context, bounds ...seats) (leave func(), err error) {
	leave = func() {
		for _, b := range bounds {
			<-b
		}
	}
	for i, b := range bounds {
		if err := b.acquire(ctx); err != nil {
			bounds = bounds[:i]
			leave()
			return nil, err
		}
	}
	return leave, nil
}

func (s seats) acquire(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	default:
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
