package deadletters

import (
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// Reads answers queries for dead letters.
type Reads struct{ query.DB }

func Projection(folds projections.Versions[Fold]) projections.Projection {
	return projections.Projection{
		Name: projections.ProjectionDeadLetters, Consumer: Consumer(folds), Tables: []string{"dead_letter_events", "dead_letter_counts"},
		Diff: projections.Difference{Rows: readLetterDiff, Totals: countLetterDiff, Columns: []string{"id", "tenantId", "feature", "live",
			"rebuilt"}},
	}
}

// Consumer records failures and their resolution.
func Consumer(folds projections.Versions[Fold]) projections.Consumer {
	return projections.Consumer{
		Name: events.GroupDeadLetter, Role: "deadletter", Topic: events.TopicUsageDeadLetter, Handler: &Handler{Folds: folds},
		Projection: projections.ProjectionDeadLetters, Versions: folds.Names(), MaxPerPartition: projections.MaxWithoutFollowUps,
	}
}
