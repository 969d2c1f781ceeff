package cli

import (
	"cmp"
	"fmt"
	"log/slog"
	"runtime"
	"slices"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
)

// ServeCmd runs the service.
type ServeCmd struct{ config.ServiceFlags }

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
	ready := make(chan node.Endpoints, 1)
	go func() {
		select {
		case at := <-ready:
			a.reportEndpoints(at)
		case <-a.ctx.Done():
		}
	}()
	if err := a.service(a.ctx, cfg, ready); err != nil && a.ctx.Err() == nil {
		return fmt.Errorf("run the service: %w", err)
	}
	return nil
}

// reportEndpoints prints the addresses of a started service.
func (a *app) reportEndpoints(at node.Endpoints) {
	health := cmp.Or(at.AdminURL, at.URL)
	switch {
	case health == "":
		a.report("The service runs, without the role api: this instance answers no HTTP")
	case !at.API:
		a.report("The service runs, without the role api: /livez, /readyz and /metrics are at %s", health)
	default:
		a.report("The service answers at %s", at.URL)
		if at.AdminURL != "" {
			a.report("/livez, /readyz and /metrics are at %s", at.AdminURL)
		}
	}
}

// MigrateCmd migrates the database.
type MigrateCmd struct{ config.ServiceFlags }

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
	n, err := node.Migrate(a.ctx, cfg, node.NewLogger(a.stderr, cfg))
	if err != nil {
		return err
	}
	if a.flags.Output != "table" {
		return a.object(fmt.Appendf(nil, `{"applied":%d}`, n))
	}
	fmt.Fprintf(a.stdout, "%d migrations applied\n", n)
	return nil
}

// serviceConfig resolves the settings of a command that runs unattended. If its log is
// JSON, its other messages are JSON, too.
func (a *app) serviceConfig(flags config.ServiceFlags) (config.Config, error) {
	cfg, all, err := a.config(flags)
	standard := func(s config.Resolved) bool { return s.Name == "METERPLEX_HTTP_ADDR" && s.Source == "default" }
	if !slices.Contains(cfg.Roles, "api") && slices.ContainsFunc(all, standard) {
		cfg.HTTPAddr = "127.0.0.1:0" // the default address is left to an instance with the role api
	}
	if cfg.LogFormat == "json" {
		a.records = slog.New(slog.NewJSONHandler(a.stderr, nil))
	}
	a.reportUnknown()
	return cfg, err
}
