package projectionstest

import (
	"errors"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
)

// LargeTwice is a fold with a planted difference: usage of more than 5 counts twice.
const LargeTwice = projections.ProjectionUsage + "/twice"

// FoldLargeTwice is the fold of LargeTwice.
func FoldLargeTwice(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
	key, d, err := usage.FoldV1(e, v)
	if d.Amount > 5 {
		d.Amount *= 2
	}
	return key, d, err
}

// Doubled is a version of the fold whose figures are easy to recognize.
const Doubled = "usage_aggregates/doubled"

// FoldDoubled is the fold of Doubled.
func FoldDoubled(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
	key, delta, err := usage.FoldV1(e, v)
	delta.Amount *= 2
	return key, delta, err
}

// Versions adds a fold version to a rebuild fixture besides v1; new generations are bound to
// it.
func (y *Rebuilds) Versions(newest string, fold usage.Fold) {
	y.Folds.Usage = models.DefaultFolds().Usage.With(newest, fold)
	y.Deploy()
}

// NewSourRebuilds is a rebuild fixture whose aggregator cannot fold usage of the feature broken.
func NewSourRebuilds(t testing.TB) *Rebuilds {
	y := NewRebuilds(t)
	y.Folds.Usage = y.Folds.Usage.With(usage.V1, func(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
		key, d, err := usage.FoldV1(e, v)
		if key.Feature == "broken" {
			err = errors.New("sour")
		}
		return key, d, err
	})
	y.Deploy()
	return y
}
