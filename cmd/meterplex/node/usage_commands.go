package node

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/projections"
)

// usageCommandsPerPartition bounds the messages of one partition in a batch: each
// message may hold 1,000 events.
const usageCommandsPerPartition = 500

// startUsageCommands starts the ingestion of usage from messages, the second way
// in besides HTTP.
func (n *Node) startUsageCommands(ctx context.Context, g *errgroup.Group) error {
	count, err := api.CountVerdicts(n.registry, &n.verdicts)
	if err != nil {
		return fmt.Errorf("register the metrics of usage.commands: %w", err)
	}
	decided := func(class string, verdicts []metering.EventVerdict) {
		count(class, verdicts)
		n.metrics.UsageDecided(len(verdicts), duplicatesAmong(verdicts))
	}
	seen := &metering.UsageSeen{Store: n.store, Now: time.Now, NewID: newID, Logger: n.logger}
	g.Go(func() error { return seen.Run(ctx) })
	take := &metering.UsageCommands{
		Ingest: &metering.IngestUsage{
			Log: n.log, Histories: n.store.Histories, Now: time.Now, Window: domain.TimestampWindow{Ahead: n.cfg.IngestAhead,
				Behind: n.cfg.IngestBehind}, NewID: newIDAt, Seen: seen,
		},
		Tenants: &store.Catalogue{Pool: n.pool}, Decided: decided,
		Backlog: n.backlog,
	}
	inner, err := n.pipe.subscriber(&projections.Consumer{
		Name: events.GroupUsageCommands, Topic: events.TopicUsageCommands, MaxPerPartition: usageCommandsPerPartition,
	})
	if err != nil {
		return err
	}
	sub := &watermill.Rewindable{
		Inner: inner, Group: events.GroupUsageCommands, Rewinds: rewinds{n.replayStore(), n.replays()}, Move: n.pipe.rewind, Ticks: n.ticks,
		Logger: n.logger,
	}
	router, err := watermill.NewRouter(n.logger, n.metrics.Handled, n.tracedRouter()...)
	if err != nil {
		return err
	}
	watermill.AddConsumer(router, events.GroupUsageCommands, events.TopicUsageCommands.Name(), sub,
		func(ctx context.Context, records []events.Record) error {
			begun := time.Now()
			err := take.Process(ctx, records)
			n.metrics.UsageMessages(time.Since(begun), err)
			return err
		})
	g.Go(func() error { return n.state.CountMessages(ctx, n.pipe.waiting) })
	g.Go(func() error { return runRouter(ctx, router, sub) })
	return nil
}

// duplicatesAmong counts the events that were recorded before.
func duplicatesAmong(verdicts []metering.EventVerdict) (n int) {
	for i := range verdicts {
		if verdicts[i].Status == metering.StatusDuplicate {
			n++
		}
	}
	return n
}
