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
	// Moves notifies a waiting read that it should look again; without it, or if the consumers
	// run in another process, reads poll.
	Moves *projections.Moves
}

// For returns the database to answer from: a caller that names a position, or that
// continues after a wait, reads where events are recorded.
func (d *DB) For(w Wait) *DB {
	if d.Replica == nil || w.MinPosition != nil {
		return d
	}
	away := *d
	away.Pool = d.Replica
	return &away
}

// Viewer is the identity of a reader: an operator, or a tenant, limited by row level
// security to its own rows.
type Viewer struct {
	TenantID uuid.UUID
	Operator bool
}
