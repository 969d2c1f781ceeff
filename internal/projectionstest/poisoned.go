package projectionstest

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// PoisonedHandler folds, but fails as its features say.
type PoisonedHandler struct{ projections.Handler }

func (p PoisonedHandler) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result,
	error) {
	for i := range batch {
		v, err := codec.VerdictOf(&batch[i])
		if err != nil {
			continue // the fold finds out
		}
		switch v.Feature {
		case "panics":
			panic("boom")
		case "refused":
			if _, err := tx.Exec(ctx, `SELECT 1 / 0`); err != nil {
				return projections.Result{}, err
			}
		case "raised":
			if _, err := tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'no'; END $$`); err != nil {
				return projections.Result{}, err
			}
		}
	}
	return p.Handler.Apply(ctx, tx, g, batch)
}
