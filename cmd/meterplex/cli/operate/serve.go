// Package operate holds the commands that run and examine the service: serve, migrate, demo, doctor, verify, system, sagas and settings.
package operate

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
)

// Service runs the whole service until ctx ends, and sends its endpoints on ready.
type Service func(ctx context.Context, cfg config.Config, ready chan<- node.Endpoints) error

// ServeCmd runs the service.
type ServeCmd struct{ config.ServiceFlags }

// Help returns the long help text.
func (ServeCmd) Help() string {
	return `Runs until Ctrl-C or SIGTERM, then finishes open requests and transactions and stops.

Without DATABASE_URL a PostgreSQL and an Apache Kafka of its own are started, on this machine alone, with their data in
METERPLEX_DATA_DIR. Where Java 17 or Maven is missing, events go through PostgreSQL instead of Kafka. With DATABASE_URL and without
KAFKA_BROKERS no server is started, and events go through that PostgreSQL; METERPLEX_PIPE=kafka starts a Kafka beside it.`
}

// heapWeight is the size of an unused allocation that delays garbage collection.
const heapWeight = 32 << 20

// Run serves until the signal.
func (c *ServeCmd) Run(a *app.App, serve Service) error {
	cfg, err := serviceConfig(a, c.ServiceFlags)
	if err != nil {
		return err
	}
	// Requests are small and frequent: a heap of a few MiB would be collected dozens of
	// times a second. Untouched memory is never resident, but counts as heap.
	weight := make([]byte, heapWeight)
	defer runtime.KeepAlive(weight)
	ready := make(chan node.Endpoints, 1)
	go func() {
		select {
		case at := <-ready:
			reportEndpoints(a, at)
		case <-a.Ctx.Done():
		}
	}()
	if err := serve(a.Ctx, cfg, ready); err != nil && a.Ctx.Err() == nil {
		return fmt.Errorf("run the service: %w", err)
	}
	return nil
}

// reportEndpoints prints the addresses of a started service.
func reportEndpoints(a *app.App, at node.Endpoints) {
	health := cmp.Or(at.AdminURL, at.URL)
	switch {
	case health == "":
		a.Report("The service runs, without the role api: this instance answers no HTTP")
	case !at.API:
		a.Report("The service runs, without the role api: /livez, /readyz and /metrics are at %s", health)
	default:
		a.Report("The service answers at %s", at.URL)
		if at.AdminURL != "" {
			a.Report("/livez, /readyz and /metrics are at %s", at.AdminURL)
		}
	}
}

// MigrateCmd migrates the database.
type MigrateCmd struct{ config.ServiceFlags }

// Help returns the long help text.
func (MigrateCmd) Help() string {
	return `Applies the missing migrations, as the owner (DATABASE_MIGRATE_URL, else DATABASE_URL), and prints their number. It is safe to
run it again, and from several places at once. serve does the same when it starts.`
}

// Run migrates and ends.
func (c *MigrateCmd) Run(a *app.App) error {
	cfg, err := serviceConfig(a, c.ServiceFlags)
	if err != nil {
		return err
	}
	n, err := node.Migrate(a.Ctx, cfg, node.NewLogger(a.Stderr, cfg))
	if err != nil {
		return err
	}
	if a.Flags.Output != "table" {
		return a.Object(fmt.Appendf(nil, `{"applied":%d}`, n))
	}
	fmt.Fprintf(a.Stdout, "%d migrations applied\n", n)
	return nil
}

// serviceConfig resolves the settings of a command that runs unattended. If its log is
// JSON, its other messages are JSON, too.
func serviceConfig(a *app.App, flags config.ServiceFlags) (config.Config, error) {
	cfg, all, err := a.Config(flags)
	standard := func(s config.Resolved) bool { return s.Name == "METERPLEX_HTTP_ADDR" && s.Source == "default" }
	if !slices.Contains(cfg.Roles, "api") && slices.ContainsFunc(all, standard) {
		cfg.HTTPAddr = "127.0.0.1:0" // the default address is left to an instance with the role api
	}
	if cfg.LogFormat == "json" {
		a.Records = slog.New(slog.NewJSONHandler(a.Stderr, nil))
	}
	a.ReportUnknown()
	return cfg, err
}
