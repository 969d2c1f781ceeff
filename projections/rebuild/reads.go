package rebuild

import (
	"time"

	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// RebuildReads answers queries for projections, their rebuilds and their differences.
type Reads struct {
	query.DB
	List []projections.Projection
	Keep time.Duration // how long a generation that readers left is kept; 0 is DefaultKeep
}
