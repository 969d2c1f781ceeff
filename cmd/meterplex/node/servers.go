package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/infra/local/folder"
	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Servers holds the embedded servers that this process started.
type Servers struct {
	Logger   *slog.Logger
	database *local.Postgres
	broker   *localkafka.Broker
}

// stopServers bounds the orderly stop of the embedded servers.
const stopServers = 60 * time.Second

// startUp bounds the start of the embedded servers and the migrations: a first start
// downloads and unpacks servers.
const startUp = 5 * time.Minute

// Start starts the embedded servers: the broker starts while the database migrates.
func (s *Servers) Start(ctx context.Context, cfg config.Config) (config.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, startUp)
	defer cancel()
	cfg = s.choosePipe(cfg)
	var brokers config.Config
	var both errgroup.Group
	both.Go(func() (err error) { brokers, err = s.startBroker(ctx, cfg); return err })
	var database config.Config
	both.Go(func() (err error) {
		if database, err = s.startDatabase(ctx, cfg); err != nil {
			return err
		}
		return s.prepareDatabase(ctx, database)
	})
	err := both.Wait()
	cfg.Kafka, cfg.DatabaseURL = brokers.Kafka, database.DatabaseURL
	return cfg, err
}

// startDatabase starts an embedded PostgreSQL if DATABASE_URL is not set.
func (s *Servers) startDatabase(ctx context.Context, cfg config.Config) (config.Config, error) {
	if cfg.DatabaseURL != "" {
		return cfg, nil
	}
	if cfg.DatabaseMigrateURL != "" {
		return cfg,
			errors.New("DATABASE_MIGRATE_URL is set and DATABASE_URL is not: set both, or leave both out for an embedded PostgreSQL")
	}
	s.Logger.Info("DATABASE_URL not set: using embedded PostgreSQL", "directory", cfg.DataDir)
	db, err := local.StartPostgres(ctx, local.PostgresConfig{DataDir: cfg.DataDir, Log: logLines{s.Logger},
		Roles: []string{postgres.WorkerRole, postgres.TenantRole, postgres.ReportingRole}})
	if err != nil {
		return cfg, advised(err, "set DATABASE_URL to a PostgreSQL that runs already")
	}
	s.database = db
	cfg.DatabaseURL = db.URL()
	return cfg, nil
}

// choosePipe chooses the pipe: the configured one, else Kafka if brokers are given, else PostgreSQL if a database is given: no embedded
// Kafka starts beside it unless METERPLEX_PIPE=kafka asks for it. Without a database it is an embedded Kafka if that can start.
func (s *Servers) choosePipe(cfg config.Config) config.Config {
	if cfg.Pipe != "" || len(cfg.Kafka.Brokers) > 0 {
		if cfg.Pipe == "" {
			cfg.Pipe = config.PipeKafka
		}
		return cfg
	}
	if cfg.DatabaseURL != "" {
		s.Logger.Info("KAFKA_BROKERS not set: events go through PostgreSQL (METERPLEX_PIPE=kafka starts an embedded Kafka)")
		cfg.Pipe = config.PipePostgres
		return cfg
	}
	cfg.Pipe = config.PipeKafka
	if err := localkafka.Available(); err != nil {
		s.Logger.Warn("no Kafka: events go through PostgreSQL (METERPLEX_PIPE=postgres)", "because", err)
		cfg.Pipe = config.PipePostgres
	}
	return cfg
}

// startBroker starts an embedded Kafka if Kafka is the pipe and no brokers are given.
func (s *Servers) startBroker(ctx context.Context, cfg config.Config) (config.Config, error) {
	if cfg.Pipe != config.PipeKafka || len(cfg.Kafka.Brokers) > 0 {
		return cfg, nil
	}
	s.Logger.Info("KAFKA_BROKERS not set: using embedded Kafka", "directory", cfg.DataDir)
	k, err := localkafka.Start(ctx, localkafka.Config{DataDir: cfg.DataDir, Log: logLines{s.Logger}, Locked: true})
	if err != nil {
		return cfg, advisedOfBroker(err, cfg.DataDir)
	}
	s.broker = k
	cfg.Kafka = config.Kafka{Brokers: k.Brokers(), SASLMechanism: "PLAIN", SASLUsername: localkafka.User, SASLPassword: k.Password(),
		Replication: cfg.Kafka.Replication}
	return cfg, nil
}

// advised adds an alternative to the error of an embedded server that does not start.
func advised(err error, instead string) error {
	if errors.Is(err, folder.ErrInUse) {
		return fmt.Errorf("%w: end that process, or give this one a METERPLEX_DATA_DIR of its own", err)
	}
	return fmt.Errorf("%w\nOr %s", err, instead)
}

// advisedOfBroker adds the remedy for damaged data: PostgreSQL has every event.
func advisedOfBroker(err error, dataDir string) error {
	const instead = "set KAFKA_BROKERS to a Kafka that runs already, or METERPLEX_PIPE=postgres"
	if !errors.Is(err, localkafka.ErrExited) && !errors.Is(err, localkafka.ErrDamaged) {
		return advised(err, instead)
	}
	dir := filepath.Join(dataDir, "kafka")
	return advised(fmt.Errorf("%w\nIts log is %s. If its data is damaged, move %s away and start again: no event is lost, PostgreSQL "+
		"has them all (docs/runbooks/kafka-data-lost.md)",
		err, filepath.Join(dir, "kafka.log"), dir), instead)
}

// checkDataDir fails if an embedded server needs the data directory, and this process cannot write to it.
func checkDataDir(cfg config.Config) error {
	if cfg.DatabaseURL != "" && (cfg.Pipe != config.PipeKafka || len(cfg.Kafka.Brokers) > 0) {
		return nil
	}
	err := os.MkdirAll(cfg.DataDir, 0o755)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(cfg.DataDir, ".writable-*"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("METERPLEX_DATA_DIR: this process cannot write to %s: give it the right (chown), or give another directory: %w",
			cfg.DataDir, err)
	}
	return nil
}

// Stop stops the servers, the broker first: it has no readers any more.
func (s *Servers) Stop() error {
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

// watch restarts an embedded server that exits unexpectedly. Its data is on disk, and
// its clients retry until it is back.
func (s *Servers) watch(ctx context.Context) {
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

func (s *Servers) again(ctx context.Context, name string, restart func(context.Context) error) {
	if ctx.Err() != nil {
		return
	}
	s.Logger.Warn("an embedded server ended by itself and is started again", "server", name)
	if err := restart(ctx); err != nil && ctx.Err() == nil {
		s.Logger.Error("an embedded server did not start again", "server", name, "error", err)
		loop.Sleep(ctx, 2*time.Second)
	}
}

// logLines logs the messages of the embedded servers line by line.
type logLines struct{ logger *slog.Logger }

func (l logLines) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if line = strings.TrimSpace(line); line != "" {
			l.logger.Info(line)
		}
	}
	return len(p), nil
}
