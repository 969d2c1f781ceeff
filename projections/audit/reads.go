// Package audit answers questions about single events: the log and its stream, lineage,
// receipts, conflicts, the identity of counts, and the starts and failovers of the database
// server. It reads the log and the projections' tables and never writes them.
package audit

import (
	"github.com/meterplex/meterplex/projections/query"
)

// Reads answers queries for events: the log, its lineage, receipts, the identity.
type Reads struct{ query.DB }
