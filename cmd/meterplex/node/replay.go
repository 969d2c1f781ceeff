package node

import (
	"context"
	"slices"
	"sync"
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
	return &relay.Replayer{Pool: n.pool, Log: n.log, Ends: n.replays(), Publisher: n.pipe.publisher, Requests: n.replayRequests, Ticks: n.ticks, Logger: n.logger}
}

// subscriber returns the pipe's subscriber, wrapped so that it executes rewinds.
func (n *Node) subscriber(c *projections.Consumer) (message.Subscriber, error) {
	inner, err := n.pipe.subscriber(c)
	if err != nil {
		return nil, err
	}
	return &watermill.Rewindable{
		Inner: inner, Group: c.Name, Rewinds: n.rewinds, Move: n.pipe.rewind, Ticks: n.ticks, Logger: n.logger,
	}, nil
}

// rewinds reads requested rewinds from the database, for all consumers of an instance.
type rewinds struct {
	store   *store.Replays
	replays *commands.Replays

	mu      sync.Mutex
	looked  time.Time // zero: before the first look
	pending []string  // consumers with a rewind at the last look
}

// sharedLook is how long a look at the rewinds of all consumers is valid. Each consumer asks once a second.
const sharedLook = 900 * time.Millisecond

// isPending says if a consumer had a rewind at a look that is younger than sharedLook.
func (r *rewinds) isPending(ctx context.Context, group string) (_ bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.looked.IsZero() || time.Since(r.looked) > sharedLook {
		began := time.Now()
		if r.pending, err = r.store.RewoundConsumers(ctx); err != nil {
			return false, err
		}
		r.looked = began
	}
	return slices.Contains(r.pending, group), nil
}

// Due implements watermill.Rewinds.
func (r *rewinds) Due(ctx context.Context, group string) (*watermill.Rewind, error) {
	if pending, err := r.isPending(ctx, group); err != nil || !pending {
		return nil, err
	}
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
