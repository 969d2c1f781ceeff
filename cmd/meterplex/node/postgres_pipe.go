package node

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections"
)

func openPostgresPipe(ctx context.Context, cfg config.Config, conns int, newLife loop.Hint, logger *slog.Logger) (*pipe, error) {
	// Readers poll many times a second, by statements whose plans cost several times what an idle poll reads.
	db, err := postgres.WorkerDB(postgres.Config{URL: cfg.DatabaseURL, MaxConns: int32(conns), ApplicationName: "meterplex-pipe",
		KeepPlans: true})
	if err != nil {
		return nil, err
	}
	pc := pgpipe.Config{DB: db, TopicPrefix: cfg.TopicPrefix, Logger: logger}
	if slices.Contains(cfg.Roles, "relay") { // else its readers wait for the rows of other processes alone
		pc.Arrivals = new(pgpipe.Arrivals)
	}
	publisher, err := pgpipe.NewPublisher(pc)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	tidying := &postgresPipe{Config: pc, newLife: newLife}
	tidying.renumber(ctx)
	return &pipe{
		publisher: publisher,
		subscriber: func(c *projections.Consumer) (message.Subscriber, error) {
			return pgpipe.NewSubscriber(pgpipe.SubscriberConfig{Config: pc, Group: c.Name})
		},
		rewind: func(ctx context.Context, group, topic string, from int64) ([]events.ReplayStep, error) {
			return pgpipe.Rewind(ctx, pc, group, topic, from)
		},
		// the pipe is in the same database: a restore sets log and topics back together
		lastRecords: func(context.Context) ([]events.RecordPosition, error) { return nil, nil },
		ping:        db.PingContext,
		retention:   func(context.Context) (map[events.Topic]time.Duration, error) { return pgpipe.Retention(), nil },
		waiting: func(ctx context.Context) (map[int16]int64, error) { // the table has no partitions
			n, err := pgpipe.LagOf(ctx, pc, events.GroupUsageCommands, events.TopicUsageCommands)
			if err != nil {
				return nil, err
			}
			return map[int16]int64{0: n}, nil
		},
		tidy:  tidying.run,
		close: func() error { return closeAll(publisher.Close, db) },
	}, nil
}

func closeAll(publisher func() error, db *sql.DB) error { return errors.Join(publisher(), db.Close()) }

const (
	trimEvery = 5 * time.Minute
	// renumberAgain is the pause after rows could not be renumbered, e.g. because a reader held the table.
	renumberAgain = 2 * time.Second
)

// postgresPipe maintains the tables of PostgreSQL as the pipe.
type postgresPipe struct {
	pgpipe.Config
	newLife loop.Hint // the server may be another one, with the rows of a dump
	failing bool      // the last attempt to renumber rows failed
}

// run renumbers rows, and trims them, after each hint and each trimEvery: another instance may have begun the life of the server, and
// ended.
func (p *postgresPipe) run(ctx context.Context) error {
	return loop.Loop{Every: trimEvery, Wake: p.newLife}.RunPaced(ctx, func(ctx context.Context) (time.Duration, error) {
		if !p.renumber(ctx) {
			return renumberAgain, nil
		}
		if _, err := pgpipe.Trim(ctx, p.Config); err != nil && ctx.Err() == nil {
			p.Logger.Warn("read frames were not trimmed", "error", err)
		}
		return 0, nil
	})
}

// renumber reports whether the rows of a dump, if there are any, were renumbered.
func (p *postgresPipe) renumber(ctx context.Context) bool {
	err := pgpipe.Renumber(ctx, p.Config)
	if err != nil && ctx.Err() == nil {
		level := slog.LevelWarn
		if p.failing {
			level = slog.LevelDebug
		}
		p.Logger.Log(ctx, level, "the pipe cannot be searched for rows of a dump, or these cannot be renumbered; trying again", "error",
			err)
	}
	p.failing = err != nil
	return err == nil
}
