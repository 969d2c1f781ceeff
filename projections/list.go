package projections

import (
	"time"

	"github.com/google/uuid"
)

// Folds are the versions of every projection's fold.
type Folds struct {
	Usage        Versions[UsageFold]
	Entitlements Versions[EntitlementFold]
	DeadLetters  Versions[DeadLetterFold]
}

// DefaultFolds returns the versions of this release.
func DefaultFolds() Folds {
	return Folds{
		Usage:        Versions[UsageFold]{{Name: UsageAggregatesV1, Fold: FoldUsage}},
		Entitlements: Versions[EntitlementFold]{{Name: EntitlementReadsV1, Fold: FoldEntitlements}},
		DeadLetters:  Versions[DeadLetterFold]{{Name: DeadLetterEventsV1, Fold: FoldDeadLetter}},
	}
}

// List returns the definition of every projection, by name. A new projection is one
// entry here, a migration with its tables and 32 checkpoints, and its fold.
func List(folds Folds, newID func() uuid.UUID) []Projection {
	return []Projection{
		deadLetterProjection(folds.DeadLetters),
		entitlementProjection(folds.Entitlements),
		usageProjection(folds.Usage, newID),
	}
}

// Definition returns this release's definition of a projection, for callers that only
// read what it says.
func Definition(name string) (*Projection, error) { return Find(List(DefaultFolds(), nil), name) }

// Reads are the reads of all projections and of the log.
type Reads struct {
	Usage        *UsageReads
	Entitlements *GrantReads
	DeadLetters  *LetterReads
	Rebuilds     *RebuildReads
	Events       *AuditReads
}

// NewReads returns the reads of a database by the folds of this binary. The cache of
// grants may be nil: then each check reads the database. Readers can be sent back to a
// generation for as long as keep after they left it; 0 is DefaultKeep.
func NewReads(db DB, grants *GrantCache, folds Folds, now func() time.Time, keep time.Duration) Reads {
	return Reads{
		Usage:        &UsageReads{DB: db, Now: now, Folds: folds.Usage},
		Entitlements: &GrantReads{DB: db, Now: now, Grants: grants},
		DeadLetters:  &LetterReads{DB: db},
		Rebuilds:     &RebuildReads{DB: db, List: List(folds, nil), Keep: keep},
		Events:       &AuditReads{DB: db},
	}
}
