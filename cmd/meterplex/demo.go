package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"
)

// demoTrace is real usage; demo/README.md names its source.
//
//go:embed demo/AzureLLMInferenceTrace_code.csv
var demoTrace []byte

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
	cfg, err := c.demoConfig(a)
	if err != nil {
		return err
	}
	made := cfg.BootstrapOperatorKey == ""
	if made {
		cfg.BootstrapOperatorKey = newOperatorKey()
	}
	ctx, stop := context.WithCancel(a.ctx)
	defer stop()
	a.say("Starting the service; data is kept in %s …", keptIn(cfg))
	if cfg.DatabaseURL == "" || len(cfg.Kafka.Brokers) == 0 {
		a.say("The first start fetches the servers that are not installed, which takes a minute or two.")
	}
	ready, ended := make(chan Endpoints, 1), make(chan error, 1)
	go func() { ended <- a.service(ctx, cfg, ready) }()

	begin := a.now()
	var at Endpoints
	select {
	case at = <-ready:
	case err := <-ended:
		return endOf(a, err)
	}
	a.say("The service answers at %s (%.1f s).", at.URL, a.now().Sub(begin).Seconds())

	shown := make(chan error, 1)
	d := &demo{app: a, cfg: cfg, at: at, madeKey: made, operator: a.clientFor(at.URL, cfg.BootstrapOperatorKey)}
	d.operator.retryFor = demoPatience
	go func() { shown <- c.show(ctx, d) }()
	var failed error
	select {
	case failed = <-shown:
		stop()
		err = <-ended
	case err = <-ended:
		if err == nil && a.ctx.Err() == nil {
			err = errors.New("it ended by itself")
		}
		stop()
		<-shown
	}
	if failed != nil && a.ctx.Err() == nil {
		return errors.Join(failed, endOf(a, err))
	}
	return endOf(a, err)
}

// keptIn returns where the data is stored, without a password.
func keptIn(cfg Config) string {
	if cfg.DatabaseURL != "" {
		return "the database of DATABASE_URL"
	}
	return cfg.DataDir
}

// endOf returns nil for a requested stop.
func endOf(a *app, err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("run the service: %w", err)
	}
	a.say("Stopped.")
	return nil
}

// demoConfig returns the usual configuration, with log level warn by default so
// that the terminal shows the demo's output.
func (c *DemoCmd) demoConfig(a *app) (Config, error) {
	cfg, all, err := a.config(c.ServiceFlags)
	if err != nil {
		return Config{}, err
	}
	if !slices.Contains(cfg.Roles, "api") {
		return Config{}, errors.New("the demo needs the role api: leave METERPLEX_ROLES and --roles out")
	}
	for _, r := range all {
		if r.name == "METERPLEX_LOG_LEVEL" && r.source == "default" {
			_ = setLevel(&cfg.LogLevel, "warn")
		}
	}
	return cfg, nil
}

// newOperatorKey returns a random key, which is not stored.
func newOperatorKey() string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	return "mp_op_" + base64.RawURLEncoding.EncodeToString(secret)
}

// show creates the demo's data, imports the trace, prints the figures, and sends
// usage until ctx ends.
func (c *DemoCmd) show(ctx context.Context, d *demo) error {
	if err := d.seed(ctx); err != nil {
		return fmt.Errorf("seed the demo: %w", err)
	}
	if err := d.importTrace(ctx); err != nil {
		return fmt.Errorf("import the demo's trace: %w", err)
	}
	figures, err := d.figures(ctx)
	if err != nil {
		return fmt.Errorf("read the demo's figures: %w", err)
	}
	fmt.Fprint(d.app.stdout, d.text(figures))
	if c.For > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, c.For)
		defer stop()
	}
	d.drive(ctx, c.Rate)
	return nil
}
