package operate

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/demo"
)

// DemoCmd runs the service with demo data and traffic.
type DemoCmd struct {
	Rate int           `default:"5" placeholder:"N" help:"Usage events sent each second once the trace is in; 0: no events (default 5)."`
	For  time.Duration `placeholder:"DURATION" help:"Stop after this time; 0, the default, means never."`
	Show bool          `name:"show-password" help:"Print the password of the database, too."`
	Fake bool          `name:"fake-stripe" help:"Deliver closed periods to a fake Stripe on this machine, and show its counts."`
	config.ServiceFlags
}

// Help returns the long help text.
func (DemoCmd) Help() string {
	return `Starts the service as serve does, creates a tenant with a plan and a key, and imports an hour of real requests to a language
model (8,819 rows, 17,638 events), moved to now. Then it goes on sending usage of api_calls until Ctrl-C.

The commands that it prints at the end can be pasted into a shell. A second run uses the same tenant and counts no event twice.`
}

// Run stops in order on Ctrl-C, with exit code 0.
func (c *DemoCmd) Run(a *app.App, serve Service) error {
	if c.Rate < 0 || c.Rate > client.MaxBatch {
		return fmt.Errorf("--rate is 0 to %d", client.MaxBatch)
	}
	cfg, err := c.Config(a)
	if err != nil {
		return err
	}
	d := demo.Demo{
		Config: cfg, Rate: c.Rate, Length: c.For, ShowPassword: c.Show, FakeStripe: c.Fake, Service: serve, NewClient: a.ClientFor,
		Now: a.Now, Report: a.Report, Stdout: a.Stdout, Stderr: a.Stderr,
	}
	return d.Run(a.Ctx)
}

// Config returns the usual configuration, with log level warn by default so
// that the terminal shows the demo's output.
func (c *DemoCmd) Config(a *app.App) (config.Config, error) {
	cfg, all, err := a.Config(c.ServiceFlags)
	if err != nil {
		return config.Config{}, err
	}
	if c.Fake && cfg.StripeKey != "" {
		return config.Config{}, errors.New("--fake-stripe needs no key of Stripe: leave METERPLEX_STRIPE_KEY and --stripe-key out")
	}
	if !slices.Contains(cfg.Roles, "api") {
		return config.Config{}, errors.New("the demo needs the role api: leave METERPLEX_ROLES and --roles out")
	}
	for _, r := range all {
		if r.Name == "METERPLEX_LOG_LEVEL" && r.Source == "default" {
			cfg.LogLevel = slog.LevelWarn
		}
	}
	return cfg, nil
}
