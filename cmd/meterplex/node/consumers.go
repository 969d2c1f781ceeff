package node

import (
	"cmp"
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/recent"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/validate"
)

// projections defines the read models.
func (n *Node) projections() []projections.Projection { return models.List(n.Folds, newID) }

// consumers lists the consumers of all roles.
func (n *Node) consumers() []projections.Consumer {
	letters := &repair.DeadLetters{Store: n.store, Now: time.Now, NewID: newID}
	all := []projections.Consumer{
		validate.Consumer(newID, n.histories),
		{
			Name: events.GroupCommands, Role: "commands", Topic: events.TopicCommands, MaxPerPartition: projections.MaxWithFollowUps,
			Handler: &store.Commands{Log: n.log, Letters: letters, Workers: map[events.Subject]func(){
				events.RebuildRequested: n.rebuildRequests.Notify,
			}},
		},
	}
	for _, p := range n.projections() {
		all = append(all, p.Consumer)
	}
	return all
}

// remember makes the memory of the newest events, with its readers: the relay and the consumers of this instance.
func (n *Node) remember() {
	n.recent, n.reading = recent.New(), map[string]*recent.Reader{}
	if n.has("relay") {
		n.relaying = n.recent.Relay()
	}
	for _, c := range n.consumers() {
		if n.has(c.Role) && (c.Topic != 0 || c.Hot) {
			n.reading[c.Name] = n.recent.Reader(c.Topic, c.Subjects)
		}
	}
}

// startConsumer runs a consumer on its own router, so that a blocked consumer does
// not block the others.
func (n *Node) startConsumer(ctx context.Context, g *errgroup.Group, c projections.Consumer) error {
	pool := n.pool
	if c.Hot {
		pool = n.hot
	}
	r := &consume.Runner{
		Pool: pool, Log: n.log, Consumer: c, NewID: newID, Logger: n.logger, Observe: n.metrics, Appended: n.followed, Moves: n.moves,
		Share: n.cfg.RebuildShare, Lags: n.lags, Cache: n.recent,
	}
	reader, remembers := n.reading[c.Name]
	if remembers {
		r.Recent = reader
	}
	n.traceConsumer(r)
	router, err := watermill.NewRouter(n.logger, n.metrics.Handled)
	if err != nil {
		return err
	}
	if c.Topic == 0 {
		sub := &watermill.LogSubscriber{Ahead: r.Ahead, Every: c.Every, Ticks: n.ticks, Logger: n.logger}
		if c.Every == 0 {
			sub.Every, sub.Wake, sub.Hinted = watermill.DefaultLogEvery, n.notifier.Reader(), n.notifier.Hearing
		}
		if remembers {
			sub.Wake = cmp.Or(sub.Wake, n.recent.Filled())
		}
		watermill.AddLogConsumer(router, c.Name, sub, r.ReadUpTo)
		g.Go(func() error { return runRouter(ctx, router, sub) })
		return nil
	}
	sub, err := n.pipe.subscriber(&c)
	if err != nil {
		return err
	}
	waiting := &watermill.LogSubscriber{Ahead: r.Waiting, Every: consume.DefaultPollEvery, Wake: reader.Ready(), Eager: true,
		Ticks: n.ticks, Logger: n.logger}
	watermill.AddConsumer(router, c.Name, c.Topic.Name(), sub, r.Process)
	watermill.AddLogConsumer(router, c.Name+"-log", waiting, r.ReadUpTo)
	g.Go(func() error { return runRouter(ctx, router, sub, waiting) })
	return nil
}
