package projections_test

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// outage folds, and then finds its database gone while it is out.
type outage struct {
	projections.Handler
	out *bool
}

func (o outage) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
	result, err := o.Handler.Apply(ctx, tx, g, batch)
	if *o.out {
		return result, errors.New("connection refused")
	}
	return result, err
}

// order records the recorded positions of its verdicts.
type order struct{ seen *[]int64 }

func (o order) Apply(_ context.Context, _ pgx.Tx, _ projections.Generation, batch []events.Envelope) (projections.Result, error) {
	for i := range batch {
		v, err := codec.VerdictOf(&batch[i])
		if err != nil {
			return projections.Result{}, err
		}
		*o.seen = append(*o.seen, v.RawPosition)
	}
	return projections.Result{}, nil
}

// poisoned folds, but fails as its features say.
type poisoned struct{ projections.Handler }

func (p poisoned) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
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

// mover folds and moves the checkpoints itself.
type mover struct{ projections.Handler }

func (m mover) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
	if _, err := tx.Exec(ctx, `UPDATE consumer_checkpoints SET position = position + 1`); err != nil {
		return projections.Result{}, err
	}
	return m.Handler.Apply(ctx, tx, g, batch)
}
