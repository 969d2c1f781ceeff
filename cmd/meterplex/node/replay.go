package node

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"

	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/projections"
)

func (n *Node) replays() *commands.Replays {
	return &commands.Replays{Store: n.replayStore(), Now: time.Now, NewID: newID}
}

func (n *Node) replayStore() *store.Replays { return &store.Replays{Store: n.store} }

func (n *Node) replayer() *relay.Replayer {
	return &relay.Replayer{Pool: n.pool, Log: n.log, Ends: n.replays(), Publisher: n.pipe.publisher, Requests: n.replayRequests, Logger: n.logger}
}

// subscriber returns the pipe's subscriber, wrapped so that it executes rewinds.
func (n *Node) subscriber(c *projections.Consumer) (message.Subscriber, error) {
	inner, err := n.pipe.subscriber(c)
	if err != nil {
		return nil, err
	}
	return &watermill.Rewindable{
		Inner: inner, Group: c.Name, Rewinds: &rewinds{n.replayStore(), n.replays()}, Move: n.pipe.rewind, Logger: n.logger,
	}, nil
}

// rewinds reads requested rewinds from the database.
type rewinds struct {
	store   *store.Replays
	replays *commands.Replays
}

// Due implements watermill.Rewinds.
func (r *rewinds) Due(ctx context.Context, group string) (*watermill.Rewind, error) {
	due, err := r.store.DueRewind(ctx, group)
	if err != nil || due == nil {
		return nil, err
	}
	back := &watermill.Rewind{ID: due.ID, From: map[int16]int64{}}
	for _, u := range due.Units {
		back.From[u.Partition] = u.First
	}
	return back, nil
}

// Done implements watermill.Rewinds.
func (r *rewinds) Done(ctx context.Context, _ string, back *watermill.Rewind, steps []events.ReplayStep, failure string) error {
	replay, err := r.store.Replay(ctx, back.ID)
	if err != nil || replay == nil {
		return err
	}
	return r.replays.EndRewind(ctx, *replay, steps, failure)
}
