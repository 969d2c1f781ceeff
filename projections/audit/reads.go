package audit

import (
	"github.com/meterplex/meterplex/projections/query"
)

// AuditReads answers queries for events: the log, its lineage, receipts, the identity.
type Reads struct{ query.DB }
