package node

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"

	"github.com/meterplex/meterplex/infra/postgres/store/repairs"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/watermill"
)

func (n *Node) replays() *repair.Replays {
	return &repair.Replays{Store: n.replayStore(), Now: time.Now, NewID: newID, Wake: n.wakeSagas}
}

func (n *Node) replayStore() *repairs.Replays { return &repairs.Replays{Store: n.store} }

// replayKinds lists the kinds of sagas that the role relay runs. They have a runner of their own: a long replay delays no close.
func (n *Node) replayKinds() []commands.SagaKind {
	return []commands.SagaKind{n.replays().RangeKind(func(ctx context.Context, replay uuid.UUID) (string, error) {
		return (&relay.Replayer{Pool: n.pool, Log: n.log, Publisher: n.pipe.publisher}).Publish(ctx, replay)
	})}
}

// rewinds reads requested rewinds of the consumer of usage.commands from the database.
type rewinds struct {
	store   *repairs.Replays
	replays *repair.Replays
}

// Due implements watermill.Rewinds.
func (r rewinds) Due(ctx context.Context) (*watermill.Rewind, error) {
	due, err := r.store.DueRewind(ctx)
	if err != nil || due == nil {
		return nil, err
	}
	return &watermill.Rewind{ID: due.ID, From: due.Units[0].First}, nil
}

// Done implements watermill.Rewinds.
func (r rewinds) Done(ctx context.Context, back *watermill.Rewind, steps []events.ReplayStep, failure string) error {
	replay, err := r.store.Replay(ctx, back.ID)
	if err != nil || replay == nil {
		return err
	}
	return r.replays.EndRewind(ctx, *replay, steps, failure)
}
