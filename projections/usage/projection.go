package usage

import (
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// Reads answers queries for figures.
type Reads struct {
	query.DB
	Now   func() time.Time
	Folds projections.Versions[Fold] // of this binary, for figures as of a position
}

func Projection(folds projections.Versions[Fold], newID func() uuid.UUID) projections.Projection {
	return projections.Projection{
		Name: projections.ProjectionUsage, Consumer: Consumer(newID, folds), Tables: []string{"usage_aggregates", "usage_running_totals",
			"usage_by_grant"}, ByPeriod: true,
		Diff: projections.Difference{
			Rows: readUsageDiff, Totals: readUsageTotals, Largest: readLargestUsageDiff, Closed: countClosedUsageDiff, Sums: true,
			Periods: true,
			Columns: []string{"tenantId", "feature", "periodKey", "subscriptionId", "live", "rebuilt", "delta", "eventCount",
				"liveEventCount", "closedSnapshot", "adjustment"},
		},
	}
}

// Consumer adds verdicts up.
func Consumer(newID func() uuid.UUID, folds projections.Versions[Fold]) projections.Consumer {
	return projections.Consumer{
		Name: events.GroupAggregator, Role: "aggregator", Topic: events.TopicUsageValidated, Handler: &Handler{Folds: folds, NewID: newID},
		Parks: true, Hot: true,
		Projection: projections.ProjectionUsage, Versions: folds.Names(),
		MaxPerPartition: projections.MaxWithoutFollowUps, MaxRecords: projections.MaxRead,
	}
}
