package entitlements

import (
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// Reads answers entitlement checks and lists.
type Reads struct {
	query.DB
	Now func() time.Time
	// Grants caches the rows that checks need; nil: each check reads the database.
	Grants *Cache
}

// Projection is the definition of entitlement_reads.
func Projection(folds projections.Versions[Fold], newID func() uuid.UUID) projections.Projection {
	return projections.Projection{
		Name: projections.ProjectionEntitlements, Consumer: Consumer(folds, newID),
		Tables: []string{"entitlement_grants", "entitlement_usage"},
		Diff: projections.Difference{
			Rows: readEntitlementDiff, Totals: countEntitlementDiff, Periods: true,
			Columns: []string{"tenantId", "feature", "periodKey", "live", "rebuilt", "delta"},
		},
	}
}

// Consumer records the grants and the usage of tenants, and the thresholds that usage of METERED features crosses. It reads the log.
func Consumer(folds projections.Versions[Fold], newID func() uuid.UUID) projections.Consumer {
	return projections.Consumer{
		Name: events.GroupEntitlements, Role: "projector", Handler: &Handler{Folds: folds, NewID: newID}, Subjects: entitlementSubjects(),
		Hot:        true,
		Projection: projections.ProjectionEntitlements, Versions: folds.Names(),
		MaxPerPartition: projections.MaxWithoutFollowUps, MaxRecords: projections.MaxRead,
	}
}
