package consume

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// Inline folds events of a consumer in the transaction that appends them: they wait for no transaction of the
// runner. It follows the same rules: the checkpoint decides which events are folded and moves in the same transaction. What it
// leaves, the runner folds.
type Inline struct {
	consumer projections.Consumer
	handler  projections.Pure
	recent   Recent
	moves    *projections.Moves
	observe  projections.Observer
	logger   *slog.Logger
}

// NewInline returns the inline fold of a consumer whose handler is pure; nil if it is not. Moves and observe may be nil.
func NewInline(c projections.Consumer, recent Recent, moves *projections.Moves, observe projections.Observer, logger *slog.Logger) *Inline {
	h, pure := c.Handler.(projections.Pure)
	if !pure {
		return nil
	}
	return &Inline{consumer: c, handler: h, recent: recent, moves: moves, observe: observe, logger: logger}
}

// Topic is the consumer's topic.
func (in *Inline) Topic() events.Topic { return in.consumer.Topic }

// Open returns those of some partitions that the consumer of this process follows: with several instances one of them
// works on a partition.
func (in *Inline) Open(partitions []int16) []int16 { return in.recent.Follows(partitions) }

// Lock returns the statement that locks the consumer's free checkpoints of partitions.
func (in *Inline) Lock(partitions []int16) (sql string, args []any) {
	return lockFreeCheckpoints, []any{in.consumer.Name, partitions}
}

// Fold returns the follow-ups of a batch. It is not ok if an event fails, or its fold panics: the runner makes its dead letter.
func (in *Inline) Fold(ctx context.Context, query projections.Query, stretches []events.InlineStretch,
	batch []events.Envelope) (followUps []events.Pending, ok bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			in.logger.ErrorContext(ctx, "an inline projection panicked; the consumer applies its events", "consumer", in.consumer.Name,
				"panic", p,
				"stack", string(debug.Stack()))
			followUps, ok, err = nil, false, nil
		}
	}()
	result, err := in.handler.FollowUps(ctx, query, stretches, batch)
	return result.FollowUps, len(result.Failed) == 0, err
}

// Move returns the statement that moves the checkpoints to the ends of the stretches.
func (in *Inline) Move(stretches []events.InlineStretch) (sql string, args []any) {
	var to moveColumns
	for _, s := range stretches {
		to.add(s.Partition, s.After, s.UpTo, s.Epoch)
	}
	return moveCheckpoints, to.args(in.consumer.Name)
}

// Folded reports a committed transaction.
func (in *Inline) Folded(stretches []events.InlineStretch, batch []events.Envelope, followUps int, took time.Duration) {
	moved := make([]events.Position, len(stretches))
	for i, s := range stretches {
		moved[i] = events.Position{Partition: s.Partition, Number: s.UpTo}
		in.recent.Reached(moved[i], s.Epoch)
	}
	in.moves.Move(in.consumer.Name, moved)
	if in.observe != nil {
		in.observe.Observe(&in.consumer, projections.Batch{Applied: batch, FollowUps: followUps, Took: took, End: time.Now()})
	}
}
