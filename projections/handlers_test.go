package projections_test

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// outageHandler folds, and then finds its database gone while it is out.
type outageHandler struct {
	projections.Handler
	out *bool
}

func (o outageHandler) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
	result, err := o.Handler.Apply(ctx, tx, g, batch)
	if *o.out {
		return result, errors.New("connection refused")
	}
	return result, err
}

// positionRecorder records the recorded positions of its verdicts.
type positionRecorder struct{ seen *[]int64 }

func (o positionRecorder) Apply(_ context.Context, _ pgx.Tx, _ projections.Generation, batch []events.Envelope) (projections.Result, error) {
	for i := range batch {
		v, err := codec.VerdictOf(&batch[i])
		if err != nil {
			return projections.Result{}, err
		}
		*o.seen = append(*o.seen, v.RawPosition)
	}
	return projections.Result{}, nil
}

// poisonedHandler folds, but fails as its features say.
type poisonedHandler struct{ projections.Handler }

func (p poisonedHandler) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
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

// movingHandler folds and moves the checkpoints itself.
type movingHandler struct{ projections.Handler }

func (m movingHandler) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
	if _, err := tx.Exec(ctx, `UPDATE consumer_checkpoints SET position = position + 1`); err != nil {
		return projections.Result{}, err
	}
	return m.Handler.Apply(ctx, tx, g, batch)
}
