// Package audit answers questions about single events: the log and its stream, lineage,
// receipts, conflicts, and the starts and failovers of the database server. It also checks that accepted
// events equal the sum of those applied, rejected, parked and under way. It reads the log and the
// projections' tables and never writes them.
package audit

import (
	"time"

	"github.com/meterplex/meterplex/projections/query"
)

// Reads answers queries for events: the log, its lineage, receipts, the identity.
type Reads struct {
	query.DB
	// ListFor is how long a page of usage looks for more rows; 0: listFor.
	ListFor time.Duration
}
