// Package bench measures the service from outside: over HTTP, as its clients do, with the database
// and the broker on the same machine. The same run measures the bare servers without the service, as the
// limit of each figure.
//
// It reports a missed aim and does not fail. It must not reduce the durability of the servers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Config selects the figures and the programs to measure.
type Config struct {
	// Serve makes the command that runs the service under test, configured by its
	// environment. The service prints its address on standard error.
	Serve func(ctx context.Context) *exec.Cmd
	// Empty makes the command of an HTTP server whose handler is Constant.
	Empty func(ctx context.Context) *exec.Cmd
	Only  []string // ids of figures; empty: all
	Grow  int      // events in the log for B10; 0: skip B10
	// Overload is the duration of the overload; 0: a minute, or less in a quick run.
	Overload time.Duration
	// History is the number of usage events in the histories of B8, B13 and close; 0: ten million, or less in
	// a quick run.
	History int
	Quick   bool
	Command string // the run's command line, for the report
	Log     io.Writer
	Now     func() time.Time
	// KafkaTLS lets the service reach Kafka over TLS, with a SCRAM password.
	KafkaTLS bool
	Settings []string // further settings of the service, NAME=VALUE
	// Profile, if set, is a folder for the database's slowest statements.
	Profile string
}

// times are the durations and sizes of the parts.
type times struct {
	rounds  int           // of B1, B2 and B6: limit and service in turn
	round   time.Duration // each of the two
	paced   time.Duration // the open-loop part of B1, B2 and B6
	latency time.Duration // B3, and its limit
	stream  time.Duration // B4
	trial   time.Duration // each of B4's rates
	fresh   time.Duration // B5, and its limit
	mixed   time.Duration // B1 with all roles running
	history int           // usage events of B8
	figure  int           // events in the figure of B13 and of close
	reads   int           // requests of each read and key
	before  time.Duration // B9: the load with the broker
	outage  time.Duration // and without the broker
	tenants int           // tenants
	point   time.Duration // each point of a curve
	idle    time.Duration
	// overload is how long too much is offered.
	overload time.Duration
}

func (c *Config) times() times {
	t := c.fixedTimes()
	if c.History > 0 {
		t.history, t.figure = c.History, c.History
	}
	return t
}

func (c *Config) fixedTimes() times {
	if c.Quick {
		return times{
			rounds: 2, round: 2 * time.Second, paced: 3 * time.Second, latency: 8 * time.Second, stream: 15 * time.Second,
			trial: 5 * time.Second, fresh: 8 * time.Second,
			mixed: 4 * time.Second, history: 500_000, figure: 300_000, reads: 60, before: 8 * time.Second, outage: 20 * time.Second,
			tenants: 1000, point: 1500 * time.Millisecond, idle: 5 * time.Second, overload: 15 * time.Second,
		}
	}
	return times{
		rounds: 9, round: 3 * time.Second, paced: 8 * time.Second, latency: 30 * time.Second, stream: 40 * time.Second,
		trial: 8 * time.Second, fresh: 30 * time.Second,
		mixed: 10 * time.Second, history: 10_000_000, figure: 10_000_000, reads: 200, before: 20 * time.Second, outage: time.Minute,
		tenants: 10_000, point: 6 * time.Second, idle: 10 * time.Second, overload: time.Minute,
	}
}

func (c *Config) logf(format string, args ...any) { fmt.Fprintf(c.Log, format+"\n", args...) }

// run is one run of the benchmark.
type run struct {
	cfg      Config
	times    times
	servers  *servers
	report   *Report
	maxRates map[string]float64 // the greatest rates of closed loops, by figure
}

// Run measures the figures that cfg selects. After an error the report holds the figures
// measured until then.
func Run(ctx context.Context, cfg Config) (report *Report, err error) {
	began := cfg.Now()
	r := &run{cfg: cfg, times: cfg.times(), report: newReport(&cfg, began), maxRates: map[string]float64{}}
	dir, err := os.MkdirTemp("", "meterplex-bench-")
	if err != nil {
		return r.report, fmt.Errorf("make a folder for the servers' data: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // the database runs as another user
		return r.report, fmt.Errorf("open the folder of the servers' data: %w", err)
	}
	cfg.logf("Starting PostgreSQL and Kafka …")
	if r.servers, err = startServers(ctx, &r.cfg, dir); err != nil {
		return r.report, err
	}
	defer func() { err = errors.Join(err, r.servers.close()) }()
	if r.report.Versions, err = r.servers.versions(ctx, r.report.Versions); err != nil {
		return r.report, err
	}
	err = r.all(ctx)
	r.report.Seconds = cfg.Now().Sub(began).Seconds()
	return r.report, err
}

// measurement measures one figure, or several that belong together.
type measurement struct {
	id   string
	slow bool // left out of a quick run unless selected by id
	// measure uses the group's service, alone has its own.
	measure func(ctx context.Context, s *subject) error
	alone   func(ctx context.Context) error
}

// measurements is a number of parts that share a service.
type measurements struct {
	roles string
	list  []measurement
}

// groups are in the order of the run: first an instance that only ingests, then
// instances with all roles.
func (r *run) groups() []measurements {
	return []measurements{
		{"api", []measurement{{id: "B1", measure: r.batches}, {id: "B2", measure: r.singles}, {id: "B7", measure: r.consumptions},
			{id: "curve", slow: true, measure: r.ingestCurves}}},
		{"all", []measurement{
			{id: "idle", measure: r.idle}, {id: "B3", measure: r.ingestLatency}, {id: "B5", measure: r.freshness},
			{id: "B6", measure: r.checks},
			{id: "B4", measure: r.endToEnd}, {id: "B4c", measure: r.correctedEndToEnd}, {id: "B12", measure: r.singlesEndToEnd},
			{id: "B7", measure: r.consumptions}, {id: "curve", slow: true, measure: r.freshCurves}, {id: "B1+", measure: r.mixed},
		}},
		{"all", []measurement{{id: "overload", slow: true, measure: r.overload}}},
		{"all", []measurement{{id: "B8", measure: r.rebuild}}},
		{"all", []measurement{{id: "B9", slow: true, measure: r.outage}}},
		{"", []measurement{
			{id: "tenants", slow: true, alone: r.manyTenants}, {id: "closes", slow: true, alone: r.closes},
			{id: "close", slow: true, alone: r.closeLong}, {id: "instances", slow: true, alone: r.instances},
			{id: "B13", slow: true, alone: r.readsAtSize}, {id: "B10", alone: r.growth},
		}},
	}
}

// Parts returns the ids of the parts that can be selected.
func Parts() (ids []string) {
	for _, g := range new(run).groups() {
		for _, p := range g.list {
			if !slices.Contains(ids, p.id) {
				ids = append(ids, p.id)
			}
		}
	}
	return ids
}

func (r *run) selected(p measurement) bool {
	switch {
	case len(r.cfg.Only) > 0:
		return slices.Contains(r.cfg.Only, p.id)
	case p.id == "B10":
		return r.cfg.Grow > 0
	default:
		return !p.slow || !r.cfg.Quick
	}
}

func (r *run) all(ctx context.Context) error {
	for _, g := range r.groups() {
		if err := r.with(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// with measures the selected parts of a group.
func (r *run) with(ctx context.Context, g measurements) (err error) {
	var s *subject
	defer func() {
		if s != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	for _, p := range g.list {
		if !r.selected(p) {
			continue
		}
		r.cfg.logf("%s …", p.id)
		if p.alone != nil {
			if err := p.alone(ctx); err != nil {
				return fmt.Errorf("measure %s: %w", p.id, err)
			}
			continue
		}
		if s == nil {
			if s, err = r.servers.serve(ctx, g.roles); err != nil {
				return err
			}
		}
		if err := p.measure(ctx, s); err != nil {
			return fmt.Errorf("measure %s: %w%s", p.id, err, s.logTail())
		}
	}
	if s == nil {
		return nil
	}
	return r.servers.saveProfile(ctx, r.cfg.Profile, s.roles, s)
}

// withService measures with a service of its own, which it stops.
func (r *run) withService(ctx context.Context, instances int, with tenantSpec, do func(s *subject) error) error {
	s, err := r.servers.serveMany(ctx, "all", instances, with)
	if err != nil {
		return err
	}
	if err := do(s); err != nil {
		return errors.Join(fmt.Errorf("%w%s", err, s.logTail()), s.stop())
	}
	return s.stop()
}

// addFigure records a figure and prints it.
func (r *run) addFigure(f Figure) {
	f.judge()
	r.report.Figures = append(r.report.Figures, f)
	r.maxRates[f.ID] = f.Value
	r.cfg.logf("  %s", strings.ReplaceAll(f.line(), "\n", "\n  "))
}
