package projections

import (
	"maps"
	"slices"

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
		Name: events.GroupValidator, Topic: events.TopicUsageRaw, Handler: &Validator{NewID: newID}, Parks: true, Hot: true,
		MaxPerPartition: MaxWithFollowUps, MaxRecords: maxVerdicts,
	}
}

// AggregatorConsumer adds verdicts up, by the versions of the fold that are given;
// new generations are bound to the newest.
func AggregatorConsumer(newID func() uuid.UUID, folds map[string]UsageFold, newest string) Consumer {
	versions := slices.DeleteFunc(slices.Sorted(maps.Keys(folds)), func(v string) bool { return v == newest })
	return Consumer{
		Name: events.GroupAggregator, Topic: events.TopicUsageValidated, Handler: &UsageAggregates{Folds: folds, NewID: newID}, Parks: true, Hot: true,
		Projection: ProjectionUsage, Versions: append(versions, newest),
		MaxPerPartition: MaxWithoutFollowUps, MaxRecords: maxRead,
	}
}

// DeadLetterConsumer keeps what failed and what became of it.
func DeadLetterConsumer() Consumer {
	return Consumer{
		Name: events.GroupDeadLetter, Topic: events.TopicUsageDeadLetter, Handler: &DeadLetterEvents{},
		Projection: ProjectionDeadLetters, Versions: []string{DeadLetterEventsV1}, MaxPerPartition: MaxWithoutFollowUps,
	}
}

// EntitlementConsumer keeps what tenants are granted and have used. It reads the log.
func EntitlementConsumer() Consumer {
	return Consumer{
		Name: events.GroupEntitlements, Handler: &EntitlementReads{}, Subjects: entitlementSubjects(), Hot: true,
		Projection: ProjectionEntitlements, Versions: []string{EntitlementReadsV1},
		MaxPerPartition: MaxWithoutFollowUps, MaxRecords: maxRead,
	}
}
