// Package query runs reads. Each answer comes from one read-only transaction, under the
// database role of its viewer. It waits until the projection has processed the events up to the
// position that the caller requests.
package query

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/projections"
)

// DB is the database for reads. Each answer comes from one read-only snapshot.
type DB struct {
	Pool *pgxpool.Pool // its sessions run as meterplex_worker
	// Replica answers lists and figures if the caller asks for no position; nil: use Pool.
	// Its answers are true at the position that they name, which may be older.
	// Entitlements, receipts and the identity always come from Pool.
	Replica *pgxpool.Pool
	// Seats bound the connections that each reader holds at the same time; nil: no bound.
	Seats, ReplicaSeats *Seats
	// Moves notifies a waiting read that it should look again; without it, or if the consumers
	// run in another process, reads poll.
	Moves *projections.Moves
	kind  kind
}

// For returns the database to answer from: a caller that names a position, or that
// continues after a wait, reads where events are recorded.
func (d *DB) For(w Wait) *DB {
	if d.Replica == nil || w.MinPosition != nil {
		return d
	}
	away := *d
	away.Pool, away.Seats = d.Replica, d.ReplicaSeats
	return &away
}

// Heavy returns the database for a read that folds or scans a part of the log: fewer of them run
// at the same time, so that they leave processors to all other work.
func (d *DB) Heavy() *DB { return d.as(heavy) }

// ForSystem returns the database for reads of the installation itself, which have a seat of their own.
func (d *DB) ForSystem() *DB { return d.as(system) }

// ForChecks returns the database for loads behind entitlement checks, which have seats of their own.
func (d *DB) ForChecks() *DB { return d.as(check) }

func (d *DB) as(k kind) *DB {
	other := *d
	other.kind = k
	return &other
}

// Viewer is the identity of a reader: an operator, or a tenant, limited by row level
// security to its own rows.
type Viewer struct {
	TenantID uuid.UUID
	Operator bool
}
