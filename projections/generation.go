package projections

import (
	"slices"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// Scope says what a generation holds: one tenant's rows (Nil: all), of one period
// ("": all). Only usage_aggregates has generations of one period.
type Scope struct {
	TenantID  uuid.UUID
	PeriodKey string
}

func (s Scope) HasTenant(tenant uuid.UUID) bool {
	return s.TenantID == uuid.Nil || s.TenantID == tenant
}

func (s Scope) HasPeriod(key string) bool { return s.PeriodKey == "" || s.PeriodKey == key }

// Partitions are those that the scope's tenants live in.
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

// Generation is one set of rows of a projection, bound to a version of its fold
// when it was made: it is never fed with another.
type Generation struct {
	Number      int
	FoldVersion string
	Scope
}

func HasFailed(failed []Failure, p events.Position) bool {
	return slices.ContainsFunc(failed, func(f Failure) bool { return f.Event.Position == p })
}
