package pgpipe_test

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// Roles belong to the server, not the database: another test may create the role first.
const makeRole = `
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'meterplex_worker') THEN
    CREATE ROLE meterplex_worker NOLOGIN NOINHERIT;
  END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$;
GRANT meterplex_worker TO CURRENT_USER;`

// database returns connections to an empty database with the role: as its owner and as the service.
func database(t testing.TB) (owner, worker *sql.DB) {
	t.Helper()
	address := localtest.Database(t)
	owner = open(t, address, "")
	if _, err := owner.Exec(makeRole); err != nil {
		t.Fatal(err)
	}
	return owner, open(t, address, "SET ROLE meterplex_worker")
}

// migrated returns a database with the service's schema, and a connection as its owner.
func migrated(t testing.TB) (url string, owner *sql.DB) {
	t.Helper()
	url = localtest.Migrated(t, postgres.Migrate)
	owner, err := postgres.OwnerDB(url)
	must.OK(t, err)
	t.Cleanup(func() { owner.Close() })
	return url, owner
}

func open(t testing.TB, address, first string) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(address)
	must.OK(t, err)
	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, first)
		return err
	}))
	db.SetMaxOpenConns(40)
	db.SetMaxIdleConns(40)
	t.Cleanup(func() { db.Close() })
	return db
}

func config(t testing.TB) (pgpipe.Config, *sql.DB) {
	t.Helper()
	owner, worker := database(t)
	cfg := pgpipe.Config{DB: owner, Logger: logger()}
	must.OK(t, pgpipe.Ensure(t.Context(), cfg))
	cfg.DB = worker
	return cfg, owner
}

func pipe(t testing.TB) pipetest.Pipe { return pipeWith(t, nil) }

func pipeWith(t testing.TB, arrivals *pgpipe.Arrivals) pipetest.Pipe {
	cfg, owner := config(t)
	cfg.AllowAnyTopic, cfg.MessageUUIDs, cfg.Arrivals = true, true, arrivals
	return pipetest.Pipe{
		Partitions: 32,
		Publisher: func(t testing.TB) message.Publisher {
			p, err := pgpipe.NewPublisher(cfg)
			must.OK(t, err)
			return p
		},
		Subscriber: func(t testing.TB, group string, maxRecords int, grace time.Duration) message.Subscriber {
			s, err := pgpipe.NewSubscriber(pgpipe.SubscriberConfig{Config: cfg, Group: group, MaxRecords: maxRecords, CloseTimeout: grace})
			must.OK(t, err)
			return s
		},
		CreateTopic: func(topic string) error {
			as := cfg
			as.DB = owner
			return pgpipe.Ensure(context.Background(), as, topic)
		},
	}
}

// TestWatermillSuite runs Watermill's own tests with one record per message.
func TestWatermillSuite(t *testing.T) { pipetest.Suite(t, pipe(t), 1) }

// TestWatermillSuiteBatched runs them with batches, in a process that publishes all rows.
func TestWatermillSuiteBatched(t *testing.T) {
	tier.AtSize(t)
	pipetest.Suite(t, pipeWith(t, new(pgpipe.Arrivals)), 500)
}

func TestContract(t *testing.T) { pipetest.Contract(t, pipe(t)) }
