package projections

import (
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// Bounds of one transaction, for Consumer.MaxPerPartition.
const (
	MaxWithFollowUps    = 200  // each event leads to another: the heads are held while they are appended
	MaxWithoutFollowUps = 2000 // a longer statement gains nothing more
)

// maxVerdicts bounds the verdicts of one transaction over all partitions: the heads
// are held while they are appended, and ingest waits for them.
const maxVerdicts = 1000

// maxRead bounds what a transaction that reads the log holds in memory, over all partitions.
const maxRead = 8000

// ValidatorConsumer turns recorded usage into verdicts.
func ValidatorConsumer(newID func() uuid.UUID) Consumer {
	return Consumer{
		Name: events.GroupValidator, Role: "validator", Topic: events.TopicUsageRaw, Handler: &Validator{NewID: newID}, Parks: true, Hot: true,
		MaxPerPartition: MaxWithFollowUps, MaxRecords: maxVerdicts,
	}
}

// AggregatorConsumer adds verdicts up.
func AggregatorConsumer(newID func() uuid.UUID, folds Versions[UsageFold]) Consumer {
	return Consumer{
		Name: events.GroupAggregator, Role: "aggregator", Topic: events.TopicUsageValidated, Handler: &UsageAggregates{Folds: folds, NewID: newID}, Parks: true, Hot: true,
		Projection: ProjectionUsage, Versions: folds.names(),
		MaxPerPartition: MaxWithoutFollowUps, MaxRecords: maxRead,
	}
}

// DeadLetterConsumer records failures and their resolution.
func DeadLetterConsumer(folds Versions[DeadLetterFold]) Consumer {
	return Consumer{
		Name: events.GroupDeadLetter, Role: "deadletter", Topic: events.TopicUsageDeadLetter, Handler: &DeadLetterEvents{Folds: folds},
		Projection: ProjectionDeadLetters, Versions: folds.names(), MaxPerPartition: MaxWithoutFollowUps,
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

func usageProjection(folds Versions[UsageFold], newID func() uuid.UUID) Projection {
	return Projection{
		Name: ProjectionUsage, Consumer: AggregatorConsumer(newID, folds), Tables: []string{"usage_aggregates"}, ByPeriod: true,
		Diff: Difference{
			Rows: readUsageDiff, Totals: readUsageTotals, Sums: true, Periods: true,
			Columns: []string{"tenantId", "feature", "periodKey", "subscriptionId", "live", "rebuilt", "delta", "eventCount", "liveEventCount"},
		},
	}
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

func deadLetterProjection(folds Versions[DeadLetterFold]) Projection {
	return Projection{
		Name: ProjectionDeadLetters, Consumer: DeadLetterConsumer(folds), Tables: []string{"dead_letter_events"},
		Diff: Difference{Rows: readLetterDiff, Totals: countLetterDiff, Columns: []string{"id", "tenantId", "feature", "live", "rebuilt"}},
	}
}
