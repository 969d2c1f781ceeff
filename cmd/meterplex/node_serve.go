package main

import (
	"context"
	"errors"
	"os"
)

// Endpoints holds the addresses of the started servers.
type Endpoints struct {
	URL         string // "": no HTTP server
	API         bool   // whether URL serves the API, or only health and metrics
	DatabaseURL string
	Brokers     []string // none: the PostgreSQL pipe
}

// serveNode runs an instance and its embedded servers until ctx ends.
func serveNode(ctx context.Context, cfg Config, commit string, ready chan<- Endpoints) (err error) {
	logger := newLogger(os.Stderr, cfg)
	own := &servers{logger: logger}
	defer func() { err = errors.Join(err, own.stop()) }()
	if cfg, err = own.start(ctx, cfg); err != nil {
		return own.ofDatabase(err)
	}
	n, err := openNode(ctx, cfg, commit, logger)
	if err != nil {
		return own.ofDatabase(err)
	}
	defer func() { err = errors.Join(err, n.close()) }()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go own.watch(watching)
	return n.run(ctx, ready)
}
