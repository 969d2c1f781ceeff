package projections

import (
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// UsageReads answers queries for figures.
type UsageReads struct {
	DB
	Now   func() time.Time
	Folds Versions[UsageFold] // of this binary, for figures as of a position
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

// AggregatorConsumer adds verdicts up.
func AggregatorConsumer(newID func() uuid.UUID, folds Versions[UsageFold]) Consumer {
	return Consumer{
		Name: events.GroupAggregator, Role: "aggregator", Topic: events.TopicUsageValidated, Handler: &UsageAggregates{Folds: folds, NewID: newID}, Parks: true, Hot: true,
		Projection: ProjectionUsage, Versions: folds.names(),
		MaxPerPartition: MaxWithoutFollowUps, MaxRecords: maxRead,
	}
}
