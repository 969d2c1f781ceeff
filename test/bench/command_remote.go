package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
)

// BenchLoad holds the common flags of the loads on a running service.
type BenchLoad struct {
	Rate     float64       `default:"0" placeholder:"N" help:"How many a second, open loop: sent when they are due, and latencies count from then. 0 (default): closed loop, as many as are answered."`
	Clients  int           `default:"16" placeholder:"N" help:"Connections, 1 to 1000 (default 16)."`
	Duration time.Duration `default:"10s" placeholder:"DURATION" help:"How long it is measured, up to 1h (default 10s)."`
	WarmUp   time.Duration `default:"2s" placeholder:"DURATION" help:"How long the load runs before it is measured (default 2s)."`
	Tenants  int           `default:"1" placeholder:"N" help:"Tenants that an operator key makes, up to 100000 (default 1)."`
	Whale    float64       `default:"0" placeholder:"PERCENT" help:"Percent of the requests that are one tenant's, with --tenants 2 or more; 0 (default): all alike."`
	Feature  string        `placeholder:"KEY" help:"With a tenant's key: a feature that its plan has."`
}

const benchKeys = `With an operator key that has admin, tenants named Benchmark are made, with keys that end an hour after the load, and a feature and a plan meterplex_ With a tenant's key the load is that tenant's, and --feature names what it is of. Either way what is sent is recorded as any usage is and stays in the log: do not measure where that would be billed.

Exit code 0: measured; 1: measured, and some requests were refused (429, 503); 2: it could not be measured.`

// remote validates the flags and returns the load's configuration.
func (c *BenchLoad) remote(a *app, batch, most int) (*Remote, error) {
	cfg, _, err := config.Load("", a.env, a.flags.Connection)
	if err != nil {
		return nil, err
	}
	for _, bound := range []struct {
		wrong bool
		say   string
	}{
		{cfg.Key == "", "a key is needed: give a tenant's or an operator's by METERPLEX_KEY or --key"},
		{c.Rate < 0 || c.Rate > 1e7, "--rate is 0 to 10000000"},
		{c.Clients < 1 || c.Clients > 1000, "--clients is 1 to 1000"},
		{c.Duration <= 0 || c.Duration > time.Hour, "--duration is up to 1h"},
		{c.WarmUp < 0 || c.WarmUp > time.Hour, "--warm-up is 0 to 1h"},
		{c.Tenants < 1 || c.Tenants > 100_000, "--tenants is 1 to 100000"},
		{c.Whale < 0 || c.Whale > 100 || c.Whale > 0 && c.Tenants < 2, "--whale is 0 to 100, with --tenants 2 or more"},
		{batch < 1 || batch > most, fmt.Sprintf("--batch is 1 to %d", most)},
	} {
		if bound.wrong {
			return nil, errors.New(bound.say)
		}
	}
	return &Remote{
		URL: cfg.URL, Key: cfg.Key, Feature: c.Feature, Rate: c.Rate, Clients: c.Clients, Batch: batch, Duration: c.Duration,
		WarmUp: c.WarmUp, Tenants: c.Tenants, Whale: c.Whale, Now: a.now, Log: a.stderr,
	}, nil
}

// measured runs a load and prints its result.
func (c *BenchLoad) measured(a *app, batch, most int, measure func(*Remote, context.Context) (*Outcome, error)) error {
	m, err := c.remote(a, batch, most)
	if err != nil {
		return err
	}
	outcome, err := measure(m, a.ctx)
	if err != nil {
		return clientError(m, err)
	}
	raw, err := json.Marshal(outcome)
	if err != nil {
		return fmt.Errorf("write the outcome: %w", err)
	}
	if err := a.object(raw); err != nil {
		return err
	}
	if outcome.Refused > 0 {
		return fmt.Errorf("%d %w", outcome.Refused, errRefused)
	}
	return nil
}

// clientError converts a load's error to the client's error types, which print a hint.
func clientError(m *Remote, err error) error {
	if x, ok := errors.AsType[*Answer](err); ok {
		p := client.ReadProblem(&http.Response{StatusCode: x.Status, Header: http.Header{"Content-Type": {"application/problem+json"}}},
			x.Body)
		p.Detail += " (" + x.To + ")"
		return p
	}
	if x, ok := errors.AsType[*net.OpError](err); ok {
		return &client.Unreachable{Base: m.URL, Cause: x}
	}
	return err
}

// Ingest sends usage.
type Ingest struct {
	BenchLoad
	Batch int `default:"100" placeholder:"N" help:"Events in a request, 1 to 1000 (default 100)."`
}

// Help returns the long help text.
func (Ingest) Help() string { return benchKeys }

// Run prints the result.
func (c *Ingest) Run(a *app) error {
	return c.measured(a, c.Batch, client.MaxBatch, (*Remote).Ingest)
}

// Flow sends usage and measures until it can be read.
type Flow struct {
	BenchLoad
	Batch int `default:"100" placeholder:"N" help:"Events in a request, 1 to 1000 (default 100)."`
}

// Help returns the long help text.
func (Flow) Help() string {
	return `freshMs is from the answer to a request until its events can be read in the aggregates; it is measured with --rate, for 20 requests a second. sustainedPerSecond is all events by the time until the last could be read, and readableAfterSeconds how long that was after the load.

` + benchKeys
}

// Run prints the result.
func (c *Flow) Run(a *app) error {
	return c.measured(a, c.Batch, client.MaxBatch, (*Remote).Flow)
}

// Check checks entitlements.
type Check struct {
	BenchLoad
	Batch int `default:"1" placeholder:"N" help:"Questions in a request, 1 to 100; more than one are asked by POST (default 1)."`
}

// Help returns the long help text.
func (Check) Help() string { return benchKeys }

// Run prints the result.
func (c *Check) Run(a *app) error {
	const mostQuestions = 100
	return c.measured(a, c.Batch, mostQuestions, (*Remote).Check)
}

// Reserve holds amounts and commits them.
type Reserve struct{ BenchLoad }

// Help returns the long help text.
func (Reserve) Help() string {
	return `Each pair holds one unit of a feature and commits it: two requests, of which the second follows the first one's answer. --rate is pairs a second. With a tenant's key, which needs entitlements:reserve, --feature names a feature with room for them.

` + benchKeys
}

// Run prints the result.
func (c *Reserve) Run(a *app) error { return c.measured(a, 1, 1, (*Remote).Reserve) }

// Rebuild rebuilds a projection.
type Rebuild struct {
	Projection string        `arg:"" optional:"" default:"usage_aggregates" help:"The projection's name (default usage_aggregates)."`
	Workers    int           `default:"0" placeholder:"N" help:"Workers of the rebuild, 1 to 32; 0 (default): as many as the service takes by itself."`
	Duration   time.Duration `default:"10m" placeholder:"DURATION" help:"How long it may take (default 10m)."`
}

// Help returns the long help text.
func (Rebuild) Help() string {
	return `Starts a rebuild, measures until it is READY, and abandons it: readers never see it. Needs an operator key with billing.`
}

// Run prints the result.
func (c *Rebuild) Run(a *app) error {
	cfg, _, err := config.Load("", a.env, a.flags.Connection)
	if err != nil {
		return err
	}
	if c.Workers < 0 || c.Workers > 32 || c.Duration <= 0 {
		return errors.New("--workers is 0 to 32, and --duration is above zero")
	}
	m := &Remote{URL: cfg.URL, Key: cfg.Key, Duration: c.Duration, Now: a.now, Log: a.stderr}
	outcome, err := m.Rebuild(a.ctx, c.Projection, c.Workers)
	if err != nil {
		return clientError(m, err)
	}
	raw, err := json.Marshal(outcome)
	if err != nil {
		return fmt.Errorf("write the outcome: %w", err)
	}
	return a.object(raw)
}
