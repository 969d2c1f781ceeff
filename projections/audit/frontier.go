package audit

import (
	"math"
	"strings"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Frontier is a place in the whole log: of each partition, by its index, the number
// up to which everything is passed.
type Frontier [events.Partitions]int64

// AfterPosition is the place right after a position in the order of partitions and
// positions: what lies in the partitions before its own is passed, too.
func AfterPosition(p events.Position) (f Frontier) {
	for i := range p.Partition {
		f[i] = math.MaxInt64
	}
	f[p.Partition] = p.Number
	return f
}

// ParseFrontier reads a position, as AfterPosition takes it, or a list of positions
// joined by commas: what of each named partition is passed, and nothing of others.
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

// String writes what ParseFrontier reads: every partition, so that a place is never
// taken for a position.
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

// Join is the farther one of two places, in each partition.
func (f Frontier) Join(other Frontier) Frontier {
	for p := range f {
		f[p] = max(f[p], other[p])
	}
	return f
}
