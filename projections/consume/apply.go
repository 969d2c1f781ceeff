package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// folded is the result of folding a batch.
type folded struct {
	failed    []projections.Failure
	followUps int
	appended  []events.Envelope // the follow-ups, if consumers of this process may be notified of them
}

// fold passes the batch to the handler and appends the follow-ups. Events that fail
// to fold become dead letters and leave no other trace.
func (r *Runner) fold(ctx context.Context, tx pgx.Tx, batch []events.Envelope, runs []*partitionRun, careful bool) (folded, error) {
	if len(batch) == 0 {
		return folded{}, nil
	}
	attempt := r.foldAndAppend
	if careful {
		attempt = r.attempt
	}
	all, err := attempt(ctx, tx, batch, runs)
	if err == nil {
		return all, r.foldAside(ctx, tx, batch, runs, all.failed)
	}
	if !careful || !ofData(err) {
		return all, err
	}
	if err := holdHeads(ctx, tx, runs); err != nil {
		return folded{}, err
	}
	if all, err = r.bisect(ctx, tx, batch, runs, err); err != nil {
		return folded{}, err
	}
	return all, r.foldAside(ctx, tx, batch, runs, all.failed)
}

// foldAndAppend folds a batch and appends its follow-ups.
func (r *Runner) foldAndAppend(ctx context.Context, tx pgx.Tx, batch []events.Envelope, runs []*partitionRun) (folded, error) {
	result, err := r.applyServing(ctx, tx, batch, runs)
	if err != nil {
		return folded{}, fmt.Errorf("apply: %w", err)
	}
	pending := append(result.FollowUps, r.deadLetters(result.Failed)...)
	appended, err := r.append(ctx, tx, pending)
	if err != nil {
		return folded{}, fmt.Errorf("append follow-ups: %w", err)
	}
	return folded{result.Failed, len(pending), appended}, nil
}

// append appends follow-ups, and returns them if consumers of this process may be notified of them.
func (r *Runner) append(ctx context.Context, tx pgx.Tx, pending []events.Pending) (appended []events.Envelope, err error) {
	switch {
	case len(pending) == 0:
	case r.Cache == nil:
		_, err = r.Log.AppendTx(ctx, tx, pending)
	default:
		appended, err = r.Log.AppendEventsTx(ctx, tx, pending)
	}
	return appended, err
}

// applyServing feeds every serving generation. An event that fails in one of them is
// removed from all: the batch is rolled back and applied again without it.
func (r *Runner) applyServing(ctx context.Context, tx pgx.Tx, batch []events.Envelope, runs []*partitionRun) (projections.Result, error) {
	serving := generationsOf(runs, true)
	if len(serving) == 1 {
		return r.apply(ctx, tx, serving[0], eventsFor(serving[0], batch, runs, nil))
	}
	var failed []projections.Failure
	for {
		before := len(failed)
		point, err := tx.Begin(ctx)
		if err != nil {
			return projections.Result{}, fmt.Errorf("set a savepoint: %w", err)
		}
		all := projections.Result{}
		for _, g := range serving {
			one, err := r.apply(ctx, point, g, eventsFor(g, batch, runs, failed))
			if err != nil {
				return projections.Result{}, errors.Join(err, point.Rollback(context.WithoutCancel(ctx)))
			}
			all.FollowUps = append(all.FollowUps, one.FollowUps...)
			for _, f := range one.Failed {
				if !projections.HasFailed(failed, f.Event.Position) {
					failed = append(failed, f)
				}
			}
		}
		if len(failed) == before {
			all.Failed = failed
			return all, point.Commit(ctx)
		}
		if err := point.Rollback(ctx); err != nil {
			return projections.Result{}, fmt.Errorf("go back to a savepoint: %w", err)
		}
	}
}

func (r *Runner) apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
	return applyTo(ctx, tx, r.Consumer.Handler, g, batch)
}

func applyTo(ctx context.Context, tx pgx.Tx, h projections.Handler, g projections.Generation,
	batch []events.Envelope) (result projections.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{p}
		}
	}()
	return h.Apply(ctx, tx, g, batch)
}

// foldAside feeds the generations that do not serve. A generation that fails on an
// event that the serving ones accepted is detached.
func (r *Runner) foldAside(ctx context.Context, tx pgx.Tx, batch []events.Envelope, runs []*partitionRun,
	failed []projections.Failure) error {
	for _, g := range generationsOf(runs, false) {
		left := failed
		if !r.Consumer.Parks {
			left = nil // a rebuild folds the events that a read model failed on
		}
		failure, err := ApplyAside(ctx, tx, &r.Consumer, g, eventsFor(g, batch, runs, left), failedAt(failed))
		if err != nil {
			return fmt.Errorf("generation %d: %w", g.Number, err)
		}
		if failure == nil {
			continue
		}
		if err := r.detach(ctx, tx, g, runs, *failure); err != nil {
			return err
		}
	}
	return nil
}

// ApplyAside folds a batch into a generation that does not serve. Events that failed in
// the live consumer, too, are not reported as failures.
func ApplyAside(ctx context.Context, tx pgx.Tx, c *projections.Consumer, g projections.Generation, batch []events.Envelope,
	failed func(events.Position) bool) (*projections.Failure, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	point, err := tx.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("set a savepoint: %w", err)
	}
	result, err := applyTo(ctx, point, c.Handler, g, batch)
	if err != nil {
		if !ofData(err) {
			return nil, fmt.Errorf("apply: %w", err)
		}
		if err := point.Rollback(ctx); err != nil {
			return nil, fmt.Errorf("go back to a savepoint: %w", err)
		}
		without := slices.DeleteFunc(slices.Clone(batch), func(e events.Envelope) bool { return failed(e.Position) })
		if len(without) == len(batch) {
			return &projections.Failure{Event: batch[0], Code: codeOf(err), Reason: fmt.Sprintf("in the %d events from here on: %v",
				len(batch), err)}, nil
		}
		return ApplyAside(ctx, tx, c, g, without, failed)
	}
	for i := range result.Failed {
		if f := &result.Failed[i]; !failed(f.Event.Position) {
			return f, point.Rollback(ctx)
		}
	}
	if err := point.Commit(ctx); err != nil {
		return nil, fmt.Errorf("release a savepoint: %w", err)
	}
	return nil, nil
}

func failedAt(failed []projections.Failure) func(events.Position) bool {
	return func(p events.Position) bool { return projections.HasFailed(failed, p) }
}
