package refusals

import (
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// Reads answers queries for refused usage.
type Reads struct{ query.DB }

// Projection is the definition of usage_refusals.
func Projection(folds projections.Versions[Fold]) projections.Projection {
	return projections.Projection{
		Name: projections.ProjectionRefusals, Consumer: Consumer(folds), Tables: []string{"usage_refusals"},
		Diff: projections.Difference{Rows: readRefusalDiff, Totals: countRefusalDiff, Columns: []string{"id", "tenantId", "feature", "live",
			"rebuilt"}},
	}
}

// Consumer adds refusals up. Its topic has no events while nothing is sent again and nothing is refused.
func Consumer(folds projections.Versions[Fold]) projections.Consumer {
	return projections.Consumer{
		Name: events.GroupRefusals, Role: "deadletter", Topic: events.TopicUsageDuplicates, Handler: &Handler{Folds: folds},
		Projection: projections.ProjectionRefusals, Versions: folds.Names(), MaxPerPartition: projections.MaxWithoutFollowUps,
	}
}
