// Package models is the one list of projections. Consumers, rebuilds, comparisons, reads,
// metrics and the CLI derive from it.
package models

import (
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/periods"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/refusals"
	"github.com/meterplex/meterplex/projections/series"
	"github.com/meterplex/meterplex/projections/state"
	"github.com/meterplex/meterplex/projections/usage"
)

// Folds are the versions of every projection's fold.
type Folds struct {
	Usage        projections.Versions[usage.Fold]
	Entitlements projections.Versions[entitlements.Fold]
	DeadLetters  projections.Versions[deadletters.Fold]
	Series       projections.Versions[series.Fold]
	Refusals     projections.Versions[refusals.Fold]
}

// DefaultFolds returns the versions of this release.
func DefaultFolds() Folds {
	return Folds{
		Usage:        projections.Versions[usage.Fold]{{Name: usage.V1, Fold: usage.FoldV1}},
		Entitlements: projections.Versions[entitlements.Fold]{{Name: entitlements.V1, Fold: entitlements.FoldV1}},
		DeadLetters:  projections.Versions[deadletters.Fold]{{Name: deadletters.V1, Fold: deadletters.FoldV1}},
		Series:       projections.Versions[series.Fold]{{Name: series.V1, Fold: series.FoldV1}},
		Refusals:     projections.Versions[refusals.Fold]{{Name: refusals.V1, Fold: refusals.FoldV1}},
	}
}

// PeriodFigures returns the computation of figures that a close of a period freezes.
func (f Folds) PeriodFigures() usage.PeriodFigures { return usage.PeriodFigures{Folds: f.Usage} }

func (f Folds) grants() usage.Grants { return usage.Grants{Folds: f.Usage} }

// List returns the definition of every projection, by name. A new projection is one
// entry here, a migration with its tables and 32 checkpoints, and its fold.
func List(folds Folds, newID func() uuid.UUID) []projections.Projection {
	return []projections.Projection{
		deadletters.Projection(folds.DeadLetters),
		entitlements.Projection(folds.Entitlements, newID),
		usage.Projection(folds.Usage, newID),
		series.Projection(folds.Series),
		refusals.Projection(folds.Refusals),
	}
}

// PersonalData lists the read models with personal data of tenants.
func PersonalData() []projections.PersonalData {
	return []projections.PersonalData{deadletters.PersonalData(), refusals.PersonalData(), series.PersonalData(), rebuild.PersonalData()}
}

// Definition returns this release's definition of a projection, for callers that only
// read it.
func Definition(name string) (*projections.Projection, error) {
	return projections.Find(List(DefaultFolds(), nil), name)
}

// Reads are the reads of all projections and of the log.
type Reads struct {
	Usage        *usage.Reads
	Entitlements *entitlements.Reads
	DeadLetters  *deadletters.Reads
	Series       *series.Reads
	Refusals     *refusals.Reads
	Rebuilds     *rebuild.Reads
	Periods      *periods.Reads
	Events       *audit.Reads
	State        *state.Reads
}

// NewReads returns the reads of a database by the folds of this binary. The cache of
// grants may be nil: then each check reads the database. Readers can be sent back to a
// generation for as long as keep after they left it; 0 is DefaultKeep.
func NewReads(db query.DB, grants *entitlements.Cache, folds Folds, now func() time.Time, keep time.Duration) Reads {
	return Reads{
		Usage:        &usage.Reads{DB: db, Now: now, Folds: folds.Usage},
		Entitlements: &entitlements.Reads{DB: db, Now: now, Grants: grants},
		DeadLetters:  &deadletters.Reads{DB: db},
		Series:       &series.Reads{DB: db},
		Refusals:     &refusals.Reads{DB: db},
		Rebuilds:     &rebuild.Reads{DB: db, List: List(folds, nil), Keep: keep, Sums: folds.grants()},
		Periods:      &periods.Reads{DB: db, Sums: folds.grants()},
		Events:       &audit.Reads{DB: db},
		State:        &state.Reads{DB: db, List: List(folds, nil)},
	}
}
