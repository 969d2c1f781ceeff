package validate

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// FollowUps judges events in the transaction that records them. A tenant's history changes only with an event of the
// catalogue in its partition, so a history that was read at the same position of the catalogue is still true.
func (v *Validator) FollowUps(ctx context.Context, query projections.Query, stretches []events.InlineStretch, batch []events.Envelope) (projections.Result, error) {
	tenants := tenantsOf(batch)
	histories, missing := v.recent.of(tenants, stretches)
	if len(missing) > 0 {
		read, err := v.histories(ctx, query, missing)
		if err != nil {
			return projections.Result{}, err
		}
		v.recent.store(read, stretches)
		for t, h := range read {
			histories[t] = h
		}
	}
	return v.judge(batch, histories), nil
}

// recent caches the histories of tenants, each with the state of the catalogue that it was read at.
type recent struct {
	mu    sync.Mutex
	known map[uuid.UUID]recentHistory
}

type recentHistory struct {
	history
	at catalogueState
}

// catalogueState is how far the catalogue of a partition has come. Positions are given again in another epoch.
type catalogueState struct {
	epoch    int32
	position int64
}

// maxRecent bounds the cached histories.
const maxRecent = 20_000

func statesOf(stretches []events.InlineStretch) (states [events.Partitions]catalogueState) {
	for _, s := range stretches {
		states[s.Partition] = catalogueState{s.Epoch, s.Catalogue}
	}
	return states
}

// of returns the histories that are known, and the tenants whose history is not.
func (c *recent) of(tenants []uuid.UUID, stretches []events.InlineStretch) (histories map[uuid.UUID]history, missing []uuid.UUID) {
	states := statesOf(stretches)
	histories = make(map[uuid.UUID]history, len(tenants))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range tenants {
		if k, ok := c.known[t]; ok && k.at == states[events.PartitionOf(t)] {
			histories[t] = k.history
		} else {
			missing = append(missing, t)
		}
	}
	return histories, missing
}

// store caches histories that were read with the heads of the stretches locked.
func (c *recent) store(read map[uuid.UUID]history, stretches []events.InlineStretch) {
	states := statesOf(stretches)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known)+len(read) > maxRecent {
		c.known = make(map[uuid.UUID]recentHistory)
	}
	for t, h := range read {
		c.known[t] = recentHistory{h, states[events.PartitionOf(t)]}
	}
}
