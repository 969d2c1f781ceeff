package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/bench"
)

// BenchCmd measures the service.
type BenchCmd struct {
	Out     string   `default:"docs/benchmarks" type:"path" placeholder:"DIR" help:"Where latest.md and latest.json are written."`
	Quick   bool     `help:"Measure each figure for a shorter time, in less than three minutes."`
	Only    []string `placeholder:"ID,…" help:"Measure only these: B1, B2, B3, B4, B5, B8, B1+, B8."`
	Profile string   `type:"path" placeholder:"DIR" help:"Also write CPU profiles of the service and the database's statements by time; the figures suffer."`
}

// Help is the long form.
func (BenchCmd) Help() string {
	return `Starts a PostgreSQL and a Kafka of its own with empty data, runs the service beside them as another process, and loads it over HTTP. Each figure is printed with the raw limit of the same servers, measured beside it in the same run. It takes up to ten minutes and all of the machine; nothing else should run meanwhile.`
}

// Run measures, and writes the report also where it was ended early.
func (c *BenchCmd) Run(a *app) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program that is to be measured: %w", err)
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return fmt.Errorf("make the folder of the report: %w", err)
	}
	stop, err := c.profileLoad()
	if err != nil {
		return err
	}
	defer stop()
	report, err := bench.Run(a.ctx, bench.Config{
		Serve: c.command(self), Only: c.Only, Quick: c.Quick, Command: c.asked(), Log: a.stderr, Now: a.now, Profile: c.Profile,
	})
	if report != nil && len(report.Figures) > 0 {
		err = errors.Join(err, c.write(report))
		fmt.Fprint(a.stdout, report.Markdown())
	}
	return err
}

// command runs the service as anybody would, or under a profiler.
func (c *BenchCmd) command(self string) func(ctx context.Context) *exec.Cmd {
	return func(ctx context.Context) *exec.Cmd {
		if c.Profile == "" {
			return exec.CommandContext(ctx, self, "serve")
		}
		return exec.CommandContext(ctx, self, "bench-serve", "--profile", c.Profile)
	}
}

// profileLoad has a profile of the load generator, too: what it takes, the
// service lacks.
func (c *BenchCmd) profileLoad() (stop func(), err error) {
	if c.Profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(filepath.Join(c.Profile, "load.pprof"))
	if err != nil {
		return nil, fmt.Errorf("write the profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("begin the profile: %w", err), f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

// asked is the command line, less what names this machine's folders.
func (c *BenchCmd) asked() string {
	words := []string{"meterplex bench"}
	if c.Quick {
		words = append(words, "--quick")
	}
	if len(c.Only) > 0 {
		words = append(words, "--only="+strings.Join(c.Only, ","))
	}
	if c.Profile != "" {
		words = append(words, "--profile")
	}
	return strings.Join(words, " ")
}

// write keeps a run of a part from taking the place of a whole one.
func (c *BenchCmd) write(report *bench.Report) error {
	name := "latest"
	if c.Quick || len(c.Only) > 0 || c.Profile != "" {
		name = "partial"
	}
	raw, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(c.Out, name+".json"), append(raw, '\n'), 0o644),
		os.WriteFile(filepath.Join(c.Out, name+".md"), []byte(report.Markdown()), 0o644))
}

// BenchServeCmd is serve with a CPU profile, for bench.
type BenchServeCmd struct {
	ServeCmd
	Profile string `required:"" type:"path"`
}

// Run serves until the signal.
func (c *BenchServeCmd) Run(a *app) error {
	roles, _ := a.env("METERPLEX_ROLES")
	f, err := os.Create(filepath.Join(c.Profile, "service-"+roles+".pprof"))
	if err != nil {
		return fmt.Errorf("write the profile: %w", err)
	}
	defer f.Close()
	if err := pprof.StartCPUProfile(f); err != nil {
		return fmt.Errorf("begin the profile: %w", err)
	}
	defer pprof.StopCPUProfile()
	return c.ServeCmd.Run(a)
}
