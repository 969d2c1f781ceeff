package projections

import (
	"time"

	"github.com/meterplex/meterplex/events"
)

// GrantReads answers entitlement checks and lists.
type GrantReads struct {
	DB
	Now func() time.Time
	// Grants caches the rows that checks need; nil: each check reads the database.
	Grants *GrantCache
}

func entitlementProjection(folds Versions[EntitlementFold]) Projection {
	return Projection{
		Name: ProjectionEntitlements, Consumer: EntitlementConsumer(folds), Tables: []string{"entitlement_grants", "entitlement_usage"},
		Diff: Difference{
			Rows: readEntitlementDiff, Totals: countEntitlementDiff, Periods: true,
			Columns: []string{"tenantId", "feature", "periodKey", "live", "rebuilt", "delta"},
		},
	}
}

// EntitlementConsumer records the grants and the usage of tenants. It reads the log.
func EntitlementConsumer(folds Versions[EntitlementFold]) Consumer {
	return Consumer{
		Name: events.GroupEntitlements, Role: "projector", Handler: &EntitlementReads{Folds: folds}, Subjects: entitlementSubjects(), Hot: true,
		Projection: ProjectionEntitlements, Versions: folds.names(),
		MaxPerPartition: MaxWithoutFollowUps, MaxRecords: maxRead,
	}
}
