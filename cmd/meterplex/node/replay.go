package node

import (
	"context"
	"time"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"

	"github.com/meterplex/meterplex/infra/postgres/store/repairs"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/watermill"
)

func (n *Node) replays() *repair.Replays {
	return &repair.Replays{Store: n.replayStore(), Now: time.Now, NewID: newID}
}

func (n *Node) replayStore() *repairs.Replays { return &repairs.Replays{Store: n.store} }

func (n *Node) replayer() *relay.Replayer {
	return &relay.Replayer{Pool: n.pool, Log: n.log, Ends: n.replays(), Publisher: n.pipe.publisher, Requests: n.replayRequests,
		Ticks: n.ticks, Logger: n.logger}
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
