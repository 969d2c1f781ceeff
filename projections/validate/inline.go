package validate

import (
	"context"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// FollowUps decides events in the transaction that records them. A tenant's history changes only with an event of the
// catalogue in its partition, so a history that was read at the same position of the catalogue is still true.
func (v *Validator) FollowUps(ctx context.Context, query projections.Query, stretches []events.InlineStretch,
	batch []events.Envelope) (projections.Result, error) {
	histories, err := v.Histories.of(ctx, query, tenantsOf(batch), stretches)
	if err != nil {
		return projections.Result{}, err
	}
	targets, err := readTargets(ctx, query, batch)
	if err != nil {
		return projections.Result{}, err
	}
	return v.decide(batch, histories, targets), nil
}
