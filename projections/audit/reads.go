// Package audit reads single events for operators: the log and its stream, lineage, receipts, conflicts,
// and the starts and failovers of the database server. It also checks that the number of accepted events
// equals the sum of the applied, rejected, parked and pending ones. It never writes.
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
