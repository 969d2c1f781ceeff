package rebuild

import (
	"time"

	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/prices"
	"github.com/meterplex/meterplex/projections/query"
)

// Reads answers queries for projections, their rebuilds and their differences.
type Reads struct {
	query.DB
	List []projections.Projection
	Sums prices.Sums   // of charges
	Keep time.Duration // how long a replaced generation is kept; 0 is DefaultKeep
}
