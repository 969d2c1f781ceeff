package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/meterplex/meterplex/infra/local"
)

// What events travel through.
const (
	pipeKafka    = "kafka"
	pipePostgres = "postgres"
)

// servers are those that this process started for itself.
type servers struct {
	logger   *slog.Logger
	database *local.Postgres
	broker   *local.Kafka
}

// stopServers bounds an orderly end of the embedded servers.
const stopServers = 60 * time.Second

// startDatabase starts a PostgreSQL where none is given.
func (s *servers) startDatabase(ctx context.Context, cfg Config) (Config, error) {
	if cfg.DatabaseURL != "" {
		return cfg, nil
	}
	if cfg.DatabaseMigrateURL != "" {
		return cfg, errors.New("DATABASE_MIGRATE_URL is set and DATABASE_URL is not: set both, or none for an embedded PostgreSQL")
	}
	s.logger.Info("no DATABASE_URL: a PostgreSQL of its own keeps the data", "directory", cfg.DataDir)
	db, err := local.StartPostgres(ctx, local.PostgresConfig{DataDir: cfg.DataDir, Log: logLines{s.logger}})
	if err != nil {
		return cfg, advised(err, "set DATABASE_URL to a PostgreSQL that runs already")
	}
	s.database = db
	cfg.DatabaseURL = db.URL()
	return cfg, nil
}

// choosePipe settles what events travel through: what was asked for, else Kafka
// where there is one or one can be started, else PostgreSQL.
func (s *servers) choosePipe(cfg Config) Config {
	if cfg.Pipe != "" || len(cfg.Kafka.Brokers) > 0 {
		if cfg.Pipe == "" {
			cfg.Pipe = pipeKafka
		}
		return cfg
	}
	cfg.Pipe = pipeKafka
	if err := local.KafkaAvailable(); err != nil {
		s.logger.Warn("no Kafka: events go through PostgreSQL (METERPLEX_PIPE=postgres)", "because", err)
		cfg.Pipe = pipePostgres
	}
	return cfg
}

// startBroker starts a Kafka where one is needed and none is given.
func (s *servers) startBroker(ctx context.Context, cfg Config) (Config, error) {
	if cfg.Pipe != pipeKafka || len(cfg.Kafka.Brokers) > 0 {
		return cfg, nil
	}
	s.logger.Info("no KAFKA_BROKERS: a Kafka of its own carries the events", "directory", cfg.DataDir)
	k, err := local.StartKafka(ctx, local.KafkaConfig{DataDir: cfg.DataDir, Log: logLines{s.logger}})
	if err != nil {
		return cfg, advised(err, "set KAFKA_BROKERS to a Kafka that runs already, or METERPLEX_PIPE=postgres")
	}
	s.broker = k
	cfg.Kafka.Brokers = k.Brokers()
	return cfg, nil
}

// advised adds to why an embedded server does not start what else can be done.
func advised(err error, instead string) error {
	if errors.Is(err, local.ErrInUse) {
		return fmt.Errorf("%w: end that process, or give this one a METERPLEX_DATA_DIR of its own", err)
	}
	return fmt.Errorf("%w\nOr %s", err, instead)
}

// stop ends them, the broker first: nothing reads it any more.
func (s *servers) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopServers)
	defer cancel()
	var errs []error
	if s.broker != nil {
		errs = append(errs, s.broker.Stop(ctx))
	}
	if s.database != nil {
		errs = append(errs, s.database.Stop(ctx))
	}
	return errors.Join(errs...)
}

// watch brings an embedded server back that ended by itself: its data is on disk,
// and everything else tries again until it is there.
func (s *servers) watch(ctx context.Context) {
	for ctx.Err() == nil {
		var database, broker <-chan struct{}
		if s.database != nil {
			database = s.database.Done()
		}
		if s.broker != nil {
			broker = s.broker.Done()
		}
		select {
		case <-ctx.Done():
			return
		case <-database:
			s.again(ctx, "PostgreSQL", s.database.Restart)
		case <-broker:
			s.again(ctx, "Kafka", s.broker.Restart)
		}
	}
}

func (s *servers) again(ctx context.Context, name string, restart func(context.Context) error) {
	if ctx.Err() != nil {
		return
	}
	s.logger.Warn("an embedded server ended by itself and is started again", "server", name)
	if err := restart(ctx); err != nil && ctx.Err() == nil {
		s.logger.Error("an embedded server did not start again", "server", name, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
	}
}

// logLines logs what the embedded servers have to say to a person.
type logLines struct{ logger *slog.Logger }

func (l logLines) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if line = strings.TrimSpace(line); line != "" {
			l.logger.Info(line)
		}
	}
	return len(p), nil
}
