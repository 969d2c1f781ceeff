package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/infra/local/localkafka"
)

// servers holds the servers of the service under test, started as the service starts its embedded servers.
type servers struct {
	cfg      *Config
	database *local.Postgres
	broker   *localkafka.Broker
	login    []string // settings of the service for a secured broker
	meter    *meter
	served   int
}

const stopTime = time.Minute

func startServers(ctx context.Context, cfg *Config, dir string) (*servers, error) {
	s := &servers{cfg: cfg}
	// Four instances need more than the usual hundred connections.
	settings := map[string]string{"max_connections": "200"}
	if cfg.Profile != "" {
		settings["shared_preload_libraries"], settings["pg_stat_statements.track_planning"] = "pg_stat_statements", "on"
	}
	var g errgroup.Group
	g.Go(func() (err error) {
		s.database, err = local.StartPostgres(ctx, local.PostgresConfig{DataDir: dir, Log: cfg.Log, Settings: settings})
		return err
	})
	g.Go(func() (err error) {
		s.broker, s.login, err = startBroker(ctx, cfg, dir)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.meter = &meter{postgres: s.database.PID(), kafka: s.broker.PID(), self: os.Getpid()}
	return s, nil
}

func (s *servers) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	var errs []error
	if s.broker != nil {
		errs = append(errs, s.broker.Stop(ctx))
	}
	if s.database != nil {
		home := s.database.Dir()
		errs = append(errs, s.database.Stop(ctx))
		// The server may have put it outside the run's folder.
		errs = append(errs, os.RemoveAll(home))
	}
	return errors.Join(errs...)
}

// newDatabase creates an empty database owned by the service's owner.
func (s *servers) newDatabase(ctx context.Context, name string) (string, error) {
	err := s.asAdmin(ctx, "postgres", "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" OWNER meterplex")
	if err != nil {
		return "", err
	}
	if s.cfg.Profile != "" {
		if err := s.asAdmin(ctx, name, "CREATE EXTENSION pg_stat_statements"); err != nil {
			return "", err
		}
	}
	return inDatabase(s.database.URL(), name)
}

func inDatabase(address, name string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", errors.New("the database's address is not a URL")
	}
	u.Path = "/" + name
	return u.String(), nil
}

// asAdmin runs statements as the superuser.
func (s *servers) asAdmin(ctx context.Context, database string, statements ...string) error {
	address, err := inDatabase(s.database.AdminURL(), database)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("reach the database as its superuser: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// checkpoint makes a checkpoint, so that measurements begin from a similar state.
func (s *servers) checkpoint(ctx context.Context) error {
	return s.asAdmin(ctx, "postgres", "CHECKPOINT")
}

// versions adds the versions of the servers.
func (s *servers) versions(ctx context.Context, v Versions) (Versions, error) {
	conn, err := pgx.Connect(ctx, s.database.URL())
	if err != nil {
		return v, fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&v.Postgres); err != nil {
		return v, fmt.Errorf("read the database's version: %w", err)
	}
	rows, err := conn.Query(ctx, settingsSQL)
	if err != nil {
		return v, fmt.Errorf("read the database's settings: %w", err)
	}
	if v.PostgresSettings, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return v, fmt.Errorf("read the database's settings: %w", err)
	}
	v.Kafka = localkafka.Version
	return v, nil
}

const settingsSQL = `SELECT name || '=' || current_setting(name) FROM unnest(ARRAY['fsync', 'synchronous_commit',
 'full_page_writes', 'shared_buffers', 'wal_buffers', 'max_wal_size', 'checkpoint_timeout', 'max_connections', 'wal_compression']) name`

const statementsSQL = `COPY (SELECT calls, round(total_exec_time) AS exec_ms, round(total_plan_time) AS plan_ms,
 round((total_exec_time + total_plan_time)::numeric * 1000 / greatest(calls, 1)) AS us_each, rows, shared_blks_hit, wal_bytes,
 left(regexp_replace(query, '\s+', ' ', 'g'), 160) AS query
 FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
 ORDER BY total_exec_time + total_plan_time DESC LIMIT 40) TO STDOUT (FORMAT csv, HEADER)`

// saveProfile writes the database's slowest statements to a file.
func (s *servers) saveProfile(ctx context.Context, dir, name string, subject *subject) error {
	if dir == "" {
		return nil
	}
	address, err := inDatabase(s.database.AdminURL(), subject.database)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("reach the database as its superuser: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	f, err := os.Create(filepath.Join(dir, "statements-"+name+".csv"))
	if err != nil {
		return fmt.Errorf("write the statements: %w", err)
	}
	if _, err := conn.PgConn().CopyTo(ctx, f, statementsSQL); err != nil {
		return errors.Join(fmt.Errorf("read the statements: %w", err), f.Close())
	}
	return f.Close()
}
