package node

import (
	"context"
	"time"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"

	"github.com/meterplex/meterplex/infra/postgres/store/repairs"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/state"
)

// rebuilds returns the command that starts, promotes and ends rebuilds.
func (n *Node) rebuilds() *repair.Rebuilds {
	c := &repair.Rebuilds{Store: &repairs.Rebuilds{Store: n.store, List: n.projections()}, Now: time.Now, NewID: newID}
	for _, p := range n.projections() {
		c.Projections = append(c.Projections, repair.Projection{Name: p.Name, Consumer: p.Consumer.Name, Newest: p.Newest(),
			ByPeriod: p.ByPeriod})
	}
	return c
}

// rebuilder returns the worker that executes rebuilds.
func (n *Node) rebuilder() *rebuild.Rebuilder {
	return &rebuild.Rebuilder{
		Pool: n.pool, Log: n.log, Projections: n.projections(), NewID: newID, Logger: n.logger, Instance: n.instance,
		Appended: n.notifier.Appended,
		Verify:   n.compare, Requests: n.rebuildRequests, Ticks: n.ticks,
		Chunk: n.cfg.RebuildChunk, Share: n.cfg.RebuildShare, Keep: n.cfg.RollbackKeep,
	}
}

// compare ends a verify: it logs, saves and records the differences found. It reads in a seat of the
// rebuilder: no client waits for it, so that it uses no connection of the readers, and as long
// as it needs.
func (n *Node) compare(ctx context.Context, r domain.Rebuild) error {
	reads := models.NewReads(query.DB{Pool: n.pool}, nil, n.Folds, time.Now, n.cfg.RollbackKeep).Rebuilds
	differs, sample, err := reads.Drift(ctx, r)
	if err != nil {
		return err
	}
	if differs > 0 {
		n.logger.Error("a projection is not as the log says", "projection", r.Projection, "keys", differs, "rebuild", r.ID, "repaired",
			r.Repair)
	}
	if err := reads.SaveReport(ctx, r.ID, sample); err != nil {
		return err
	}
	return n.rebuilds().FinishVerify(ctx, r.ID, differs)
}

// identity compares accepted events with their ends, for the metrics. Like compare, it uses no connection of the readers.
func (n *Node) identity(ctx context.Context) (state.Comparison, error) {
	i, err := models.NewReads(query.DB{Pool: n.pool}, nil, n.Folds, time.Now, n.cfg.RollbackKeep).Events.Identity(ctx)
	return state.Comparison{Holds: i.Holds, Accepted: i.Accepted, Aggregated: i.Aggregated, Rejected: i.Rejected, InFlight: i.InFlight,
		Parked:  i.Parked,
		Missing: i.Total.Missing}, err
}

// compareAccounts compares some accounts behind limits with the log, for the metrics.
func (n *Node) compareAccounts(ctx context.Context) (state.Accounts, error) {
	return n.metrics.CompareAccounts(ctx, n.pool)
}

func (n *Node) reads() models.Reads {
	db := query.DB{Pool: n.readers, Seats: n.seats, Replica: n.replica, Moves: n.moves}
	if n.replica != nil {
		db.ReplicaSeats = query.NewSeats(readConns, 0)
	}
	return models.NewReads(db, n.grants, n.Folds, time.Now, n.cfg.RollbackKeep)
}
