package node

import (
	"context"
	"errors"
	"os"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
)

// Endpoints holds the addresses of the started servers.
type Endpoints struct {
	URL         string // "": no HTTP server
	AdminURL    string // of health, metrics and profiles; "": health and metrics are at URL
	API         bool   // whether URL serves the API, or only health and metrics
	DatabaseURL string
	Kafka       config.Kafka // no brokers: the PostgreSQL pipe
	// SignInLink opens a link that signs in to the console once, as the bootstrap operator key. Nil: there is no console, or no such key.
	SignInLink func(ctx context.Context) (string, error)
}

// Serve runs an instance and its embedded servers until ctx ends.
func Serve(ctx context.Context, cfg config.Config, commit string, ready chan<- Endpoints) (err error) {
	if err := errors.Join(checkAddresses(cfg), checkDataDir(cfg), checkTraces(cfg)); err != nil {
		return err
	}
	logger := NewLogger(os.Stderr, cfg)
	own := &Servers{Logger: logger}
	defer func() { err = errors.Join(err, own.Stop()) }()
	if cfg, err = own.Start(ctx, cfg); err != nil {
		return own.ofDatabase(err)
	}
	n, err := Open(ctx, cfg, commit, logger)
	if err != nil {
		return own.ofDatabase(err)
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go own.watch(watching)
	return n.Run(ctx, ready)
}
