package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Endpoints holds the addresses of the started servers.
type Endpoints struct {
	URL         string // "": no HTTP server
	API         bool   // whether URL serves the API, or only health and metrics
	DatabaseURL string
	Brokers     []string // none: the PostgreSQL pipe
}

// ServeCmd runs the service.
type ServeCmd struct{ ServiceFlags }

// Help returns the long help text.
func (ServeCmd) Help() string {
	return `Runs until Ctrl-C or SIGTERM, then finishes what is under way and stops.

Without DATABASE_URL a PostgreSQL of its own is started, without KAFKA_BROKERS an Apache Kafka, both on this machine alone, with their data in METERPLEX_DATA_DIR. Where Java 17 or Maven is missing, events go through PostgreSQL instead of Kafka.`
}

// heapWeight is the size of an unused allocation that delays garbage collection.
const heapWeight = 32 << 20

// Run serves until the signal.
func (c *ServeCmd) Run(a *app) error {
	cfg, err := a.serviceConfig(c.ServiceFlags)
	if err != nil {
		return err
	}
	// Requests are small and frequent: a heap of a few MiB would be collected dozens of
	// times a second. Untouched memory is never resident, but counts as heap.
	weight := make([]byte, heapWeight)
	defer runtime.KeepAlive(weight)
	ready := make(chan Endpoints, 1)
	go func() {
		select {
		case at := <-ready:
			switch {
			case at.URL == "":
				a.say("The service runs, without the role api: this instance answers no HTTP")
			case !at.API:
				a.say("The service runs, without the role api: /livez, /readyz and /metrics are at %s", at.URL)
			default:
				a.say("The service answers at %s", at.URL)
			}
		case <-a.ctx.Done():
		}
	}()
	if err := a.service(a.ctx, cfg, ready); err != nil && a.ctx.Err() == nil {
		return fmt.Errorf("run the service: %w", err)
	}
	return nil
}

// MigrateCmd migrates the database.
type MigrateCmd struct{ ServiceFlags }

// Help returns the long help text.
func (MigrateCmd) Help() string {
	return `Applies the missing migrations, as the owner (DATABASE_MIGRATE_URL, else DATABASE_URL), and prints their number. It is safe to run it again, and from several places at once. serve does the same when it starts.`
}

// Run migrates and ends.
func (c *MigrateCmd) Run(a *app) error {
	cfg, err := a.serviceConfig(c.ServiceFlags)
	if err != nil {
		return err
	}
	servers := &servers{logger: newLogger(a.stderr, cfg)}
	defer servers.stop()
	if cfg.DatabaseMigrateURL == "" {
		if cfg, err = servers.startDatabase(a.ctx, cfg); err != nil {
			return err
		}
	}
	n, err := migrate(a.ctx, cfg, servers.logger)
	if err != nil {
		return servers.ofDatabase(err)
	}
	if a.client.Output != "table" {
		return a.object(fmt.Appendf(nil, `{"applied":%d}`, n))
	}
	fmt.Fprintf(a.stdout, "%d migrations applied\n", n)
	return nil
}

// migrate brings the schema up to date, including the pipe's tables if PostgreSQL is
// the pipe, and grants the service's logins access to it.
func migrate(ctx context.Context, cfg Config, logger *slog.Logger) (int, error) {
	logins := postgres.Logins{Migrates: cmp.Or(cfg.DatabaseMigrateURL, cfg.DatabaseURL), Works: cfg.DatabaseURL}
	n, err := postgres.MigrateAs(ctx, logins, logger)
	if err != nil {
		return n, err
	}
	if cfg.DatabaseReadURL != "" {
		reads := postgres.Logins{Migrates: logins.Migrates, Works: cfg.DatabaseReadURL}
		if err := postgres.GrantRoles(ctx, reads, logger); err != nil {
			return n, fmt.Errorf("DATABASE_READ_URL: %w", err)
		}
	}
	if cfg.Pipe != pipePostgres {
		return n, nil
	}
	db, err := postgres.OwnerDB(logins.Migrates)
	if err != nil {
		return n, err
	}
	defer db.Close()
	return n, pgpipe.Ensure(ctx, pgpipe.Config{DB: db, TopicPrefix: cfg.TopicPrefix})
}

// serviceConfig resolves the settings of a command that runs unattended. If its log is
// JSON, its other messages are JSON, too.
func (a *app) serviceConfig(flags ServiceFlags) (Config, error) {
	cfg, all, err := a.config(flags)
	standard := func(s resolved) bool { return s.name == "METERPLEX_HTTP_ADDR" && s.source == "default" }
	if !slices.Contains(cfg.Roles, "api") && slices.ContainsFunc(all, standard) {
		cfg.HTTPAddr = "127.0.0.1:0" // the default address is left to an instance with the role api
	}
	if cfg.LogFormat == "json" {
		a.records = slog.New(slog.NewJSONHandler(a.stderr, nil))
	}
	a.sayUnknown()
	return cfg, err
}

func newLogger(to io.Writer, cfg Config) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.LogLevel, ReplaceAttr: inWords}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(to, options))
	}
	return slog.New(slog.NewTextHandler(to, options))
}

// inWords reduces errors to their message: the text handler would also print the stack
// traces that some libraries attach.
func inWords(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		a.Value = slog.StringValue(fmt.Sprint(err)) // fmt survives an error that is a nil pointer
	}
	return a
}

// startUp bounds the start of the embedded servers and the migrations: a first start
// downloads and unpacks servers.
const startUp = 5 * time.Minute
