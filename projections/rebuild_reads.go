package projections

import "time"

// RebuildReads answers queries for projections, their rebuilds and their differences.
type RebuildReads struct {
	DB
	List []Projection
	Keep time.Duration // how long a generation that readers left is kept; 0 is DefaultKeep
}
