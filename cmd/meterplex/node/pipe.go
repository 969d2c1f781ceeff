package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/projections"
)

// pipe carries records: Kafka, or PostgreSQL if there is no Kafka.
type pipe struct {
	publisher   message.Publisher
	subscriber  func(c *projections.Consumer) (message.Subscriber, error)
	rewind      watermill.Mover
	ping        func(ctx context.Context) error
	lastRecords func(ctx context.Context) ([]events.RecordPosition, error)        // of each topic and partition
	retention   func(ctx context.Context) (map[events.Topic]time.Duration, error) // of each topic whose records expire
	// messages of usage.commands in each partition that its consumer has not passed
	waiting   func(ctx context.Context) (map[int16]int64, error)
	tidy      func(ctx context.Context) error // runs until ctx ends
	close     func() error
	unreached bool // no broker answered when the pipe was opened
}

// openPipe opens the pipe; conns is the size of the pool if it is PostgreSQL, whose rows may be of another server after newLife.
func openPipe(ctx context.Context, cfg config.Config, conns int, newLife loop.Hint, logger *slog.Logger) (*pipe, error) {
	if cfg.Pipe == config.PipePostgres {
		return openPostgresPipe(ctx, cfg, conns, newLife, logger)
	}
	return openKafka(ctx, cfg, logger)
}

func openKafka(ctx context.Context, cfg config.Config, logger *slog.Logger) (*pipe, error) {
	tlsConfig, err := cfg.Kafka.TLSConfig(logger)
	if err != nil {
		return nil, err
	}
	authorities, err := cfg.Kafka.Authorities(logger)
	if err != nil {
		return nil, err
	}
	kc := kafka.Config{
		Brokers: cfg.Kafka.Brokers, TopicPrefix: cfg.TopicPrefix, TLS: tlsConfig, Authorities: authorities, Logger: logger,
		Replication: cfg.Kafka.Replication,
		SASL:        kafka.SASL{Mechanism: cfg.Kafka.SASLMechanism, Username: cfg.Kafka.SASLUsername, Password: cfg.Kafka.SASLPassword},
	}
	admin, err := kafka.NewAdmin(kc)
	if err != nil {
		return nil, err
	}
	answered, err := ensureTopics(ctx, admin, logger)
	if err != nil {
		admin.Close()
		return nil, err
	}
	publisher, err := kafka.NewPublisher(kc)
	if err != nil {
		admin.Close()
		return nil, err
	}
	return &pipe{
		unreached: !answered,
		publisher: publisher,
		subscriber: func(c *projections.Consumer) (message.Subscriber, error) {
			sc := kafka.SubscriberConfig{Config: kc, Group: c.Name, MaxRecordsPerPartition: c.MaxPerPartition}
			if c.Topic.LowRate() {
				return kafka.NewLowRateSubscriber(sc)
			}
			return kafka.NewSubscriber(sc)
		},
		rewind:      admin.Rewind,
		lastRecords: admin.LastRecords,
		ping:        admin.Ping,
		retention:   admin.Retention,
		waiting:     func(ctx context.Context) (map[int16]int64, error) { return waitingMessages(ctx, admin) },
		tidy:        func(ctx context.Context) error { return watchTopics(ctx, admin, logger) },
		close: func() error {
			admin.Close()
			return publisher.Close()
		},
	}, nil
}

// waitingMessages returns the lag of the consumer of usage.commands in each partition.
func waitingMessages(ctx context.Context, admin *kafka.Admin) (map[int16]int64, error) {
	lags, err := admin.Lag(ctx, events.GroupUsageCommands)
	waiting := make(map[int16]int64, len(lags))
	for _, l := range lags {
		if l.Topic == events.TopicUsageCommands {
			waiting[l.Partition] = max(l.Lag, 0)
		}
	}
	return waiting, err
}

// topics is the part of the Kafka admin client that checks and creates topics.
type topics interface {
	Ping(ctx context.Context) error
	Ensure(ctx context.Context) error
	Doubts(ctx context.Context) ([]string, error)
}

// ensureTopics does not fail if the broker is missing or slow: ingestion needs no broker,
// and watchTopics checks the topics again. Errors that waiting cannot fix end the start.
func ensureTopics(ctx context.Context, admin topics, logger *slog.Logger) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ensureTime)
	defer cancel()
	if err := admin.Ping(ctx); err != nil {
		logger.Error("Kafka unreachable: ingest continues, events are queued in the log", "error", err)
		return false, nil
	}
	switch err := admin.Ensure(ctx); {
	case err == nil:
	case errors.Is(err, kafka.ErrTopicsUnfit):
		return true, err
	default:
		logger.Error("cannot check or create the topics: ingest continues, events are queued in the log", "error", err)
		return false, nil
	}
	doubts, err := admin.Doubts(ctx)
	if err != nil { // the service may lack the permission
		logger.Debug("the settings of the topics could not be read", "error", err)
	}
	for _, doubt := range doubts {
		logger.Warn("a topic may lose records or refuse them; lost records are restored from the log", "because", doubt)
	}
	return true, nil
}

// ensureTime is how long the start waits for the topics.
const ensureTime = 20 * time.Second

const watchTopicsEvery = 5 * time.Second

// watchTopics creates missing topics: no broker answered when the service started, or
// a broker lost its data.
func watchTopics(ctx context.Context, admin topics, logger *slog.Logger) error {
	logged := ""
	return loop.Loop{Every: watchTopicsEvery}.Run(ctx, func(ctx context.Context) error {
		level, err := slog.LevelDebug, admin.Ensure(ctx)
		switch again := fmt.Sprint(err) == logged; {
		case again: // already logged at its own level
		case errors.Is(err, kafka.ErrTooFewBrokers):
			level = slog.LevelWarn
		case errors.Is(err, kafka.ErrTopicsUnfit):
			level = slog.LevelError
		}
		if logged = fmt.Sprint(err); err != nil {
			logger.Log(ctx, level, "topics could not be looked at, or made", "error", err)
		}
		return nil
	})
}
