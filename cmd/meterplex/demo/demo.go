// Package demo starts the service and sends it the usage of a recorded trace. It calls the service only
// through its HTTP API.
package demo

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
)

// trace is real usage; README.md names its source.
//
//go:embed AzureLLMInferenceTrace_code.csv
var trace []byte

// Demo runs the service, creates a tenant with real usage in it, and sends more usage.
type Demo struct {
	Config       config.Config // of the service
	Rate         int           // usage events sent each second
	Length       time.Duration // of the traffic; 0 means until ctx ends
	ShowPassword bool          // of the database
	FakeStripe   bool          // gets the amounts of closed periods
	Service      func(ctx context.Context, cfg config.Config, ready chan<- node.Endpoints) error
	NewClient    func(base, key string) *client.Client
	Now          func() time.Time
	Report       func(format string, args ...any)
	Stdout       io.Writer
	Stderr       io.Writer

	at       node.Endpoints
	operator *client.Client
	tenant   *client.Client
	tenantID string
	madeKey  bool // whether the operator key was generated for this run
}

// Run runs the demo until ctx ends, which is no error.
func (d *Demo) Run(ctx context.Context) error {
	if d.madeKey = d.Config.BootstrapOperatorKey == ""; d.madeKey {
		d.Config.BootstrapOperatorKey = NewOperatorKey()
	}
	if d.FakeStripe {
		defer d.startStripe().Close()
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	d.Report("Starting the service; data is kept in %s …", storageOf(d.Config))
	if d.Config.DatabaseURL == "" || d.Config.Pipe == config.PipeKafka && len(d.Config.Kafka.Brokers) == 0 {
		d.Report("The first start fetches the servers that are not installed, which takes a minute or two.")
	}
	ready, ended := make(chan node.Endpoints, 1), make(chan error, 1)
	go func() { ended <- d.Service(working, d.Config, ready) }()

	begin := d.Now()
	select {
	case d.at = <-ready:
	case err := <-ended:
		return d.endOf(err)
	}
	d.Report("The service answers at %s (%.1f s).", d.at.URL, d.Now().Sub(begin).Seconds())
	if err := d.writeSettings(); err != nil {
		stop()
		return errors.Join(err, d.endOf(<-ended))
	}

	shown := make(chan error, 1)
	d.operator = d.clientWith(d.Config.BootstrapOperatorKey)
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

// settingsFile is the file of the settings by which commands reach the demo and its servers.
func (d *Demo) settingsFile() string { return filepath.Join(d.Config.DataDir, "demo", "settings.env") }

// writeSettings writes the file anew, for its owner alone: it holds the operator key and the passwords of the servers.
func (d *Demo) writeSettings() error {
	cfg := d.Config
	cfg.URL, cfg.Key, cfg.DatabaseURL, cfg.Kafka = d.at.URL, d.Config.BootstrapOperatorKey, d.at.DatabaseURL, d.at.Kafka
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(cfg.Client())) {
		fmt.Fprintf(&text, "%s=%s\n", name, cfg.Client()[name])
	}
	file := d.settingsFile()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("make the folder of the demo's settings: %w", err)
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the last run's settings: %w", err)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("write the demo's settings: %w", err)
	}
	return nil
}

// storageOf returns where the data is stored, without a password.
func storageOf(cfg config.Config) string {
	if cfg.DatabaseURL != "" {
		return "the database of DATABASE_URL"
	}
	return cfg.DataDir
}

// endOf returns nil for a requested stop.
func (d *Demo) endOf(err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("run the service: %w", err)
	}
	d.Report("Stopped.")
	return nil
}

// NewOperatorKey returns a random key, which is not stored.
func NewOperatorKey() string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	return "mp_op_" + base64.RawURLEncoding.EncodeToString(secret)
}

// show creates the demo's data, imports the trace, prints the figures, and sends
// usage until ctx ends.
func (d *Demo) show(ctx context.Context) error {
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
	link, err := d.signInLink(ctx)
	if err != nil {
		return err
	}
	fmt.Fprint(d.Stdout, d.text(figures, link))
	if d.Length > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, d.Length)
		defer stop()
	}
	d.drive(ctx)
	return nil
}
