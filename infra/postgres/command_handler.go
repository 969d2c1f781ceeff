package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// Commands is the command router's handler: it executes what was answered 202,
// in the transaction that moves its checkpoint, so each is executed once.
type Commands struct {
	Log     *Log
	Letters *commands.DeadLetters
}

var _ projections.Handler = (*Commands)(nil)

// Apply executes a batch of commands in their order. The heads are locked first:
// what a command loads must not change before it appends.
func (c *Commands) Apply(ctx context.Context, tx pgx.Tx, batch []events.Envelope) (projections.Result, error) {
	var partitions []int16
	for i := range batch {
		if batch[i].Subject == events.RetryRequested {
			partitions = append(partitions, batch[i].Position.Partition)
		}
	}
	if len(partitions) == 0 {
		return projections.Result{}, nil
	}
	if _, err := lockHeads(ctx, tx, partitions); err != nil {
		return projections.Result{}, err
	}
	for i := range batch {
		if batch[i].Subject != events.RetryRequested {
			continue
		}
		change := &changeTx{log: c.Log, ctx: ctx, tx: tx, partition: batch[i].Position.Partition}
		if err := c.Letters.ExecuteRetry(change, &batch[i]); err != nil {
			return projections.Result{}, err
		}
	}
	return projections.Result{}, nil
}
