package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// DemoCmd runs the service with demo data and traffic.
type DemoCmd struct {
	Rate int           `default:"5" placeholder:"N" help:"Usage events sent each second once the trace is in; 0 for none (default 5)."`
	For  time.Duration `placeholder:"DURATION" help:"Stop by itself after so long; 0, the default, means never."`
	ServiceFlags
}

// Help returns the long help text.
func (DemoCmd) Help() string {
	return `Starts the service as serve does, creates a tenant with a plan and a key, and imports an hour of real requests to a language model (8,819 rows, 17,638 events), moved to now. Then it goes on sending usage of api_calls until Ctrl-C.

What it prints at the end can be pasted into a shell. Running it again finds what is there: nothing is created or counted twice.`
}

// Run stops in order on Ctrl-C, with exit code 0.
func (c *DemoCmd) Run(a *app) error {
	if c.Rate < 0 || c.Rate > maxBatch {
		return fmt.Errorf("--rate is 0 to %d", maxBatch)
	}
	cfg, err := c.config(a)
	if err != nil {
		return err
	}
	d := demo{
		cfg: cfg, rate: c.Rate, length: c.For, service: a.service, newClient: a.clientFor,
		now: a.now, say: a.say, stdout: a.stdout, stderr: a.stderr,
	}
	return d.run(a.ctx)
}

// config returns the usual configuration, with log level warn by default so
// that the terminal shows the demo's output.
func (c *DemoCmd) config(a *app) (Config, error) {
	cfg, all, err := a.config(c.ServiceFlags)
	if err != nil {
		return Config{}, err
	}
	if !slices.Contains(cfg.Roles, "api") {
		return Config{}, errors.New("the demo needs the role api: leave METERPLEX_ROLES and --roles out")
	}
	for _, r := range all {
		if r.name == "METERPLEX_LOG_LEVEL" && r.source == "default" {
			cfg.LogLevel = slog.LevelWarn
		}
	}
	return cfg, nil
}
