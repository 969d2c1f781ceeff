package projections

import (
	"slices"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// Scope limits a generation to one tenant (Nil: all) and one period ("": all).
// Only usage_aggregates has generations of one period.
type Scope struct {
	TenantID  uuid.UUID
	PeriodKey string
}

func (s Scope) HasTenant(tenant uuid.UUID) bool {
	return s.TenantID == uuid.Nil || s.TenantID == tenant
}

func (s Scope) HasPeriod(key string) bool { return s.PeriodKey == "" || s.PeriodKey == key }

// Partitions returns the partitions of the scope's tenants.
func (s Scope) Partitions() []int16 {
	if s.TenantID != uuid.Nil {
		return []int16{events.PartitionOf(s.TenantID)}
	}
	all := make([]int16, events.Partitions)
	for p := range all {
		all[p] = int16(p)
	}
	return all
}

// Generation is one set of rows of a projection, bound at its creation to a fold
// version: no other version ever writes it.
type Generation struct {
	Number      int
	FoldVersion string
	Scope
}

func HasFailed(failed []Failure, p events.Position) bool {
	return slices.ContainsFunc(failed, func(f Failure) bool { return f.Event.Position == p })
}
