package projections

import (
	"maps"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// CatalogueMarks say how far the catalogue and the periods of each partition have come, and which tenants have changed there lately, so
// that the change of one tenant leaves the cached keys and histories of the others true. A later state is another value.
type CatalogueMarks struct {
	marks   [events.Partitions]int64 // the last change, and which start of the server it was read from
	since   [events.Partitions]int64 // changed names every tenant that has changed behind this mark
	epochs  [events.Partitions]int32
	changed map[uuid.UUID]int64 // a mark that the last change of the tenant is not behind
}

// CatalogueStep is how far a partition has come.
type CatalogueStep struct {
	Partition int16
	Epoch     int32
	Mark      int64
	Changed   []uuid.UUID // the tenants with a change behind the mark before; nil: not known, if the mark is another one
}

const (
	// catalogueRestartBits is above every position that a partition will reach.
	catalogueRestartBits = 44
	// maxCatalogueChanges bounds the tenants whose last change is kept.
	maxCatalogueChanges = 2000
)

// CatalogueMarkOf returns the mark of a position that was read from the n-th start of the server.
func CatalogueMarkOf(starts, position int64) int64 { return starts<<catalogueRestartBits | position }

// positionOf returns the position of a mark.
func positionOf(mark int64) int64 { return mark & (1<<catalogueRestartBits - 1) }

// With returns the marks after steps. Without a state before, m is nil.
func (m *CatalogueMarks) With(steps []CatalogueStep) *CatalogueMarks {
	n := &CatalogueMarks{}
	if m != nil {
		*n = *m
	}
	own := false
	for _, s := range steps {
		p := s.Partition
		before, epoch := n.marks[p], n.epochs[p]
		n.marks[p], n.epochs[p] = s.Mark, s.Epoch
		switch {
		case m != nil && s.Mark == before && s.Epoch == epoch:
		case m == nil || s.Changed == nil || s.Epoch != epoch || s.Mark < before ||
			s.Mark>>catalogueRestartBits != before>>catalogueRestartBits:
			n.since[p] = s.Mark
		default:
			if !own {
				n.changed, own = maps.Clone(n.changed), true
			}
			if n.changed == nil {
				n.changed = map[uuid.UUID]int64{}
			}
			for _, tenant := range s.Changed {
				n.changed[tenant] = s.Mark
			}
		}
	}
	if len(n.changed) > maxCatalogueChanges {
		n.changed, n.since = nil, n.marks
	}
	return n
}

// Mark returns how far a partition has come.
func (m *CatalogueMarks) Mark(partition int16) int64 { return m.marks[partition] }

// Position returns the last change in a partition.
func (m *CatalogueMarks) Position(partition int16) int64 { return positionOf(m.marks[partition]) }

// Unchanged reports whether the catalogue and the periods of a tenant have not changed behind a mark.
func (m *CatalogueMarks) Unchanged(tenant uuid.UUID, mark int64) bool {
	p := events.PartitionOf(tenant)
	return mark == m.marks[p] || mark >= m.since[p] && mark < m.marks[p] && m.changed[tenant] <= mark
}

// At returns the epoch of a partition, and the last change in it.
func (m *CatalogueMarks) At(partition int16) (epoch int32, position int64) {
	return m.epochs[partition], positionOf(m.marks[partition])
}

// UnchangedAt reports whether a tenant has not changed between two positions of an epoch, of which the later is that of the head that the
// caller has locked: the marks must have come that far, and no further.
func (m *CatalogueMarks) UnchangedAt(tenant uuid.UUID, epoch int32, from, head int64) bool {
	p := events.PartitionOf(tenant)
	if m.epochs[p] != epoch || positionOf(m.marks[p]) != head {
		return false
	}
	return m.Unchanged(tenant, CatalogueMarkOf(m.marks[p]>>catalogueRestartBits, from))
}
