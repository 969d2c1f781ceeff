package audit

import (
	"math"
	"strings"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Frontier is how far the whole log is read: for each partition, by its index, the number
// of the last passed position.
type Frontier [events.Partitions]int64

// AfterPosition returns the frontier right after a position in the order of partitions
// and positions: earlier partitions are passed whole.
func AfterPosition(p events.Position) (f Frontier) {
	for i := range p.Partition {
		f[i] = math.MaxInt64
	}
	f[p.Partition] = p.Number
	return f
}

// ParseFrontier parses a position, as for AfterPosition, or a comma-separated list
// of positions: the last passed one of each partition, 0 for unnamed partitions.
func ParseFrontier(s string) (f Frontier, err error) {
	parts := strings.Split(s, ",")
	if len(parts) > events.Partitions {
		return f, frontierInvalid("names a partition twice")
	}
	var named [events.Partitions]bool
	for _, part := range parts {
		p, err := events.ParsePosition(part)
		if err != nil {
			return f, frontierInvalid("is a position, as in 17-4711, or several joined by commas, one for each partition")
		}
		if len(parts) == 1 {
			return AfterPosition(p), nil
		}
		if named[p.Partition] {
			return f, frontierInvalid("names a partition twice")
		}
		named[p.Partition], f[p.Partition] = true, p.Number
	}
	return f, nil
}

func frontierInvalid(why string) error {
	return query.RefusedAs("position_invalid", "after "+why, query.ErrPositionInvalid)
}

// String formats a list for ParseFrontier: every partition, so that a frontier is never
// mistaken for a position.
func (f Frontier) String() string {
	var b strings.Builder
	for p, number := range f {
		if p > 0 {
			b.WriteByte(',')
		}
		b.WriteString(events.Position{Partition: int16(p), Number: number}.String())
	}
	return b.String()
}

// Join returns the later of two frontiers, in each partition.
func (f Frontier) Join(other Frontier) Frontier {
	for p := range f {
		f[p] = max(f[p], other[p])
	}
	return f
}
