package query

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain/seats"
)

// Seats divide the connections of a pool of reads, so that the reads of tenants leave connections to all others. The seats are never
// more than the connections: a read that has its seat has a connection.
type Seats struct {
	lists  *seats.Seats // reads of all tenants and operators
	system *seats.Seats // reads of the installation itself
	checks *seats.Seats // loads behind entitlement checks
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

// NewSeats divides a number of connections; lists cannot take those that are reserved. Operators together have a quarter of the
// connections. Heavy reads have half of those of lists: they keep half of the processors of a small machine busy.
func NewSeats(connections, reserved int) *Seats {
	lists := max(1, connections-reserved)
	few := func(n int) *seats.Seats {
		return seats.New(seats.Config{All: n, Operators: n, Heavy: n, Patience: patience})
	}
	return &Seats{
		lists:  seats.New(seats.Config{All: lists, Operators: connections / 4, Heavy: lists / 2, Patience: patience}),
		system: few(1), checks: few(reserved - 1),
	}
}

// Reader takes a seat for a read by a key of a tenant, or by an operator (Nil). It refuses with ErrOverloaded. The read runs with the
// context seated, and the caller calls leave after it returned the connection.
func (s *Seats) Reader(ctx context.Context, tenant uuid.UUID) (seated context.Context, leave func(), err error) {
	return s.acquire(ctx, Viewer{TenantID: tenant, Operator: tenant == uuid.Nil}, ordinary)
}

// InUse counts the reads that run or wait.
func (s *Seats) InUse() int { return s.lists.InUse() + s.system.InUse() + s.checks.InUse() }

// acquire waits for the seat of a read.
func (s *Seats) acquire(ctx context.Context, v Viewer, k kind) (seated context.Context, leave func(), err error) {
	tenant, of := v.TenantID, (*seats.Seats)(nil)
	switch {
	case s == nil:
		return ctx, func() {}, nil
	case k == system:
		tenant, of = uuid.Nil, s.system
	case k == check:
		tenant, of = uuid.Nil, s.checks
	case v.Operator:
		tenant, of = uuid.Nil, s.lists
	default:
		of = s.lists
	}
	if seated, leave, err = of.Acquire(ctx, tenant, k == heavy); errors.Is(err, seats.ErrBusy) {
		err = ErrOverloaded
	}
	return seated, leave, err
}
