// Package bench measures the service from outside: over HTTP, as its clients do,
// with the database and the broker beside it. Each figure has the raw limit of
// the same servers measured next to it in the same run.
//
// It decides nothing and asserts nothing: a figure that misses its aim is written
// down as such. It may not make the servers less durable than they are shipped.
package bench

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

// Config says what is measured and with what.
type Config struct {
	// Serve makes the command that runs the service under test, with the settings
	// given by its environment. It says where it answers on standard error.
	Serve   func(ctx context.Context) *exec.Cmd
	Only    []string // ids of figures; empty: all
	Quick   bool
	Command string // how the run was asked for, for the report
	Log     io.Writer
	Now     func() time.Time
	// Profile, where it is set, is a folder that takes what a profiler wants to
	// know: statements by time of the database.
	Profile string
}

// times are how long each part runs.
type times struct {
	rounds  int           // of B1 and B2: limit and service in turn
	round   time.Duration // each of the two
	paced   time.Duration // the open-loop part of B1 and B2
	latency time.Duration // B3, and its limit
	stream  time.Duration // B4
	fresh   time.Duration // B5, and its limit
	mixed   time.Duration // B1 with everything running
	history int           // usage events of B8
}

func (c *Config) times() times {
	if c.Quick {
		return times{1, 4 * time.Second, 3 * time.Second, 8 * time.Second, 15 * time.Second, 8 * time.Second, 4 * time.Second, 500_000}
	}
	return times{3, 8 * time.Second, 8 * time.Second, 30 * time.Second, 40 * time.Second, 30 * time.Second, 10 * time.Second, 10_000_000}
}

func (c *Config) wants(id string) bool {
	return len(c.Only) == 0 || slices.Contains(c.Only, id)
}

func (c *Config) say(format string, args ...any) { fmt.Fprintf(c.Log, format+"\n", args...) }

// run is a run of the benchmark.
type run struct {
	cfg    Config
	times  times
	stand  *stand
	report *Report
}

// Run measures what cfg wants. The report holds what was measured also where an
// error ends it early.
func Run(ctx context.Context, cfg Config) (report *Report, err error) {
	began := cfg.Now()
	r := &run{cfg: cfg, times: cfg.times(), report: newReport(&cfg, began)}
	dir, err := os.MkdirTemp("", "meterplex-bench-")
	if err != nil {
		return r.report, fmt.Errorf("make a folder for the servers' data: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // the database runs as another user
		return r.report, fmt.Errorf("open the folder of the servers' data: %w", err)
	}
	cfg.say("Starting PostgreSQL and Kafka …")
	if r.stand, err = newStand(ctx, &r.cfg, dir); err != nil {
		return r.report, err
	}
	defer func() { err = errors.Join(err, r.stand.close()) }()
	if r.report.Versions, err = r.stand.versions(ctx, r.report.Versions); err != nil {
		return r.report, err
	}
	err = r.all(ctx)
	r.report.Seconds = cfg.Now().Sub(began).Seconds()
	return r.report, err
}

// all goes through the figures: first those of an instance that only takes usage
// in, then those of one that does everything.
func (r *run) all(ctx context.Context) error {
	ingest := []part{{"B1", r.batches}, {"B2", r.singles}}
	whole := []part{{"B3", r.ingestLatency}, {"B5", r.freshness}, {"B4", r.endToEnd}, {"B1+", r.mixed}}
	if err := r.with(ctx, "api", ingest); err != nil {
		return err
	}
	if err := r.with(ctx, "all", whole); err != nil {
		return err
	}
	return r.with(ctx, "all", []part{{"B8", r.rebuild}})
}

// part measures one figure against a running service.
type part struct {
	id      string
	measure func(ctx context.Context, s *subject) error
}

func (r *run) with(ctx context.Context, roles string, parts []part) error {
	parts = slices.DeleteFunc(parts, func(p part) bool { return !r.cfg.wants(p.id) })
	if len(parts) == 0 {
		return nil
	}
	s, err := r.stand.serve(ctx, roles)
	if err != nil {
		return err
	}
	defer s.stop()
	for _, p := range parts {
		r.cfg.say("%s …", p.id)
		if err := p.measure(ctx, s); err != nil {
			return fmt.Errorf("measure %s: %w%s", p.id, err, s.lastWords())
		}
	}
	if err := r.stand.keepProfile(ctx, r.cfg.Profile, s); err != nil {
		return err
	}
	return s.stop()
}

// add notes a figure and tells it.
func (r *run) add(f Figure) {
	f.judge()
	r.report.Figures = append(r.report.Figures, f)
	r.cfg.say("  %s", strings.ReplaceAll(f.line(), "\n", "\n  "))
}
