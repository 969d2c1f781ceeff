package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"time"
)

// demoTrace is real usage; demo/README.md names its source.
//
//go:embed demo/AzureLLMInferenceTrace_code.csv
var demoTrace []byte

// demo runs the service, creates a tenant with real usage in it, and sends more usage.
type demo struct {
	cfg       Config
	rate      int           // usage events sent each second
	length    time.Duration // of the traffic; 0 means until ctx ends
	service   func(ctx context.Context, cfg Config, ready chan<- Endpoints) error
	newClient func(base, key string) *client
	now       func() time.Time
	say       func(format string, args ...any)
	stdout    io.Writer
	stderr    io.Writer

	at       Endpoints
	operator *client
	tenant   *client
	tenantID string
	madeKey  bool // whether the operator key was generated for this run
}

// run returns nil if ctx ends.
func (d *demo) run(ctx context.Context) error {
	if d.madeKey = d.cfg.BootstrapOperatorKey == ""; d.madeKey {
		d.cfg.BootstrapOperatorKey = newOperatorKey()
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	d.say("Starting the service; data is kept in %s …", keptIn(d.cfg))
	if d.cfg.DatabaseURL == "" || len(d.cfg.Kafka.Brokers) == 0 {
		d.say("The first start fetches the servers that are not installed, which takes a minute or two.")
	}
	ready, ended := make(chan Endpoints, 1), make(chan error, 1)
	go func() { ended <- d.service(working, d.cfg, ready) }()

	begin := d.now()
	select {
	case d.at = <-ready:
	case err := <-ended:
		return d.endOf(err)
	}
	d.say("The service answers at %s (%.1f s).", d.at.URL, d.now().Sub(begin).Seconds())

	shown := make(chan error, 1)
	d.operator = d.clientWith(d.cfg.BootstrapOperatorKey)
	go func() { shown <- d.show(working) }()
	var failed, err error
	select {
	case failed = <-shown:
		stop()
		err = <-ended
	case err = <-ended:
		if err == nil && ctx.Err() == nil {
			err = errors.New("it ended by itself")
		}
		stop()
		<-shown
	}
	if failed != nil && ctx.Err() == nil {
		return errors.Join(failed, d.endOf(err))
	}
	return d.endOf(err)
}

// keptIn returns where the data is stored, without a password.
func keptIn(cfg Config) string {
	if cfg.DatabaseURL != "" {
		return "the database of DATABASE_URL"
	}
	return cfg.DataDir
}

// endOf returns nil for a requested stop.
func (d *demo) endOf(err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("run the service: %w", err)
	}
	d.say("Stopped.")
	return nil
}

// newOperatorKey returns a random key, which is not stored.
func newOperatorKey() string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	return "mp_op_" + base64.RawURLEncoding.EncodeToString(secret)
}

// show creates the demo's data, imports the trace, prints the figures, and sends
// usage until ctx ends.
func (d *demo) show(ctx context.Context) error {
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
	fmt.Fprint(d.stdout, d.text(figures))
	if d.length > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, d.length)
		defer stop()
	}
	d.drive(ctx)
	return nil
}
