package store

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/projections"
)

// Commands is the command router's handler: it executes commands that were answered
// 202, in the transaction that moves its checkpoint, so that each is executed once.
//
// Work that is longer than a transaction has workers of its own, which find it in its table:
// the router starts them at once. Without a broker, or in another instance, they poll.
type Commands struct {
	Log     *eventlog.Log
	Letters *repair.DeadLetters
	// Workers starts the worker of a requested command.
	Workers map[events.Subject]func()
}

var _ projections.Handler = (*Commands)(nil)

// Apply executes a batch of commands in their order. It locks the heads first: the data
// that a command loads must not change before it appends.
func (c *Commands) Apply(ctx context.Context, tx pgx.Tx, _ projections.Generation, batch []events.Envelope) (projections.Result, error) {
	requests := make(map[int16][]events.Envelope)
	for i := range batch {
		switch subject := batch[i].Subject; subject {
		case events.RetryRequested:
			p := batch[i].Position.Partition
			requests[p] = append(requests[p], batch[i])
		case events.BulkRequested: // each of its retries is a command of its own
		default:
			if start := c.Workers[subject]; start != nil {
				start()
			}
		}
	}
	partitions := slices.Sorted(maps.Keys(requests))
	if len(partitions) == 0 {
		return projections.Result{}, nil
	}
	held := eventlog.In(tx)
	if err := c.Log.LockHeads(ctx, held, partitions); err != nil {
		return projections.Result{}, err
	}
	var result projections.Result
	for _, p := range partitions {
		change := &Tx{log: c.Log, ctx: ctx, tx: held, partition: p}
		faults, err := c.Letters.ExecuteRetries(change, requests[p])
		if err != nil {
			return projections.Result{}, err
		}
		for i, fault := range faults {
			if failure := projections.Try(requests[p][i], func() error { return fault }); failure != nil {
				result.Failed = append(result.Failed, *failure)
			}
		}
	}
	return result, held.Flush(ctx)
}
