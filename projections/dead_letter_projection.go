package projections

import "github.com/meterplex/meterplex/events"

// LetterReads answers queries for dead letters.
type LetterReads struct{ DB }

func deadLetterProjection(folds Versions[DeadLetterFold]) Projection {
	return Projection{
		Name: ProjectionDeadLetters, Consumer: DeadLetterConsumer(folds), Tables: []string{"dead_letter_events"},
		Diff: Difference{Rows: readLetterDiff, Totals: countLetterDiff, Columns: []string{"id", "tenantId", "feature", "live", "rebuilt"}},
	}
}

// DeadLetterConsumer records failures and their resolution.
func DeadLetterConsumer(folds Versions[DeadLetterFold]) Consumer {
	return Consumer{
		Name: events.GroupDeadLetter, Role: "deadletter", Topic: events.TopicUsageDeadLetter, Handler: &DeadLetterEvents{Folds: folds},
		Projection: ProjectionDeadLetters, Versions: folds.names(), MaxPerPartition: MaxWithoutFollowUps,
	}
}
