package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// grammar is the command line.
type grammar struct {
	config.Connection
	Output string `short:"o" enum:"table,json" default:"table" help:"table or json (default table)."`

	All     All     `cmd:"" default:"withargs" help:"Run all benchmarks, on servers of their own (the default)."`
	Ingest  Ingest  `cmd:"" help:"Measure ingest of a running service: throughput and latency."`
	Flow    Flow    `cmd:"" help:"Measure the freshness of figures of a running service, and the rate that it sustains."`
	Check   Check   `cmd:"" help:"Measure entitlement checks of a running service: throughput and latency."`
	Reserve Reserve `cmd:"" help:"Measure reservations of a running service: throughput and latency of hold and commit."`
	Rebuild Rebuild `cmd:"" help:"Measure a rebuild in a running service: events folded a second. The rebuild is dropped."`
	Serve   Serve   `cmd:"" hidden:"" help:"Run the service, for all."`
	Empty   Empty   `cmd:"" hidden:"" help:"Run an empty HTTP server, for all."`
}

// All measures the service on its own servers.
type All struct {
	Out      string        `type:"path" placeholder:"DIR" help:"Where the report is written: latest.md, latest.json and a picture; of a part, partial.md and so on. Not given: it is only printed."`
	Quick    bool          `help:"Measure each figure for a shorter time, in less than three minutes; the slow ones not at all."`
	Only     []string      `placeholder:"ID,…" help:"Measure only these; with --quick also the slow ones, for a shorter time."`
	Grow     int           `placeholder:"N" help:"With B10: the number of events in the log, e.g. 50000000. Each takes about 1.2 kB of disk."`
	History  int           `placeholder:"N" help:"The number of usage events in the histories of B8, B13 and close, at least 20000 (10000000; with --quick 500000 and 300000). Each takes about 1 kB of disk."`
	Overload time.Duration `placeholder:"DURATION" help:"How long overload offers too much (a minute; with --quick 15s)."`
	KafkaTLS bool          `name:"kafka-tls" help:"Let the service reach Kafka over TLS, with a SCRAM-SHA-512 password."`
	Setting  []string      `sep:"none" placeholder:"NAME=VALUE" help:"Measure the service with a setting, e.g. METERPLEX_TRACE_RATIO=0.01; may be repeated."`
	Profile  string        `type:"path" placeholder:"DIR" help:"Also write CPU profiles of the service and the load and the database's statements by time; the figures suffer."`
}

// Help returns the long help text.
func (All) Help() string {
	return `Starts a PostgreSQL and a Kafka of its own with empty data, runs the service beside them as another process, and loads it over HTTP. Each figure is printed with the raw limit of the same servers, measured beside it in the same run. It takes half an hour and all of the machine; nothing else should run meanwhile.

The figures: ` + strings.Join(Parts(), ", ") + `. docs/benchmarks/README.md says what each is.`
}

// checkSetting refuses a setting with which the benchmark would measure something else. Its value may be a secret.
func checkSetting(s string) error {
	name, _, ok := strings.Cut(s, "=")
	switch {
	case !ok || !strings.Contains(name, "_"):
		return fmt.Errorf("--setting %s: it is no NAME=VALUE; meterplex config print lists the settings", output.Printable(name))
	case len(config.Unknown([]string{s})) > 0:
		return fmt.Errorf("--setting %s: there is no such setting; meterplex config print lists them", output.Printable(name))
	case Sets(name):
		return fmt.Errorf("--setting %s: the benchmark sets it, for servers of its own", output.Printable(name))
	}
	return nil
}

// Run measures, and writes the report even if it was stopped early.
func (c *All) Run(a *app) error {
	for _, id := range c.Only {
		if !slices.Contains(Parts(), id) {
			return fmt.Errorf("--only %s: unknown figure; known are %s", output.Printable(id), strings.Join(Parts(), ", "))
		}
	}
	for _, s := range c.Setting {
		if err := checkSetting(s); err != nil {
			return err
		}
	}
	if c.History < 0 || c.History > 0 && c.History < LeastHistory {
		return fmt.Errorf("--history is %d or more", LeastHistory)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program that is to be measured: %w", err)
	}
	for _, dir := range []string{c.Out, c.Profile} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a folder for the measurements: %w", err)
		}
	}
	stop, err := c.profileLoad()
	if err != nil {
		return err
	}
	defer stop()
	report, err := Run(a.ctx, Config{
		Serve: c.command(self), Only: c.Only, Quick: c.Quick, Grow: c.Grow, History: c.History, Overload: c.Overload,
		Command: c.commandLine(), Log: a.stderr, Now: a.now, Profile: c.Profile, KafkaTLS: c.KafkaTLS, Settings: c.Setting,
		Empty: func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, self, "empty") },
	})
	if report != nil && len(report.Figures)+len(report.Curves) > 0 {
		err = errors.Join(err, c.write(report), c.show(a, report))
	}
	return err
}

// show prints the report; the table format is Markdown.
func (c *All) show(a *app, report *Report) error {
	if a.flags.Output == "table" {
		_, err := fmt.Fprint(a.stdout, report.Markdown(""))
		return err
	}
	raw, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return a.object(raw)
}

// command returns the command that runs the service, with a profiler if --profile is set.
func (c *All) command(self string) func(ctx context.Context) *exec.Cmd {
	return func(ctx context.Context) *exec.Cmd {
		if c.Profile == "" {
			return exec.CommandContext(ctx, self, "serve")
		}
		return exec.CommandContext(ctx, self, "serve", "--profile", c.Profile)
	}
}

// profileLoad profiles the load generator, too: it takes CPU time from the service.
func (c *All) profileLoad() (stop func(), err error) {
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

// commandLine returns the command line without paths.
func (c *All) commandLine() string {
	words := []string{"bench all"}
	if c.Quick {
		words = append(words, "--quick")
	}
	if len(c.Only) > 0 {
		words = append(words, "--only="+strings.Join(c.Only, ","))
	}
	if c.Grow > 0 {
		words = append(words, fmt.Sprintf("--grow=%d", c.Grow))
	}
	if c.History > 0 {
		words = append(words, fmt.Sprintf("--history=%d", c.History))
	}
	if c.Overload > 0 {
		words = append(words, "--overload="+c.Overload.String())
	}
	if c.KafkaTLS {
		words = append(words, "--kafka-tls")
	}
	for _, s := range c.Setting {
		name, _, _ := strings.Cut(s, "=") // its value may be a secret
		words = append(words, "--setting="+name)
	}
	if c.Profile != "" {
		words = append(words, "--profile")
	}
	return strings.Join(words, " ")
}

// write saves the report. A quick, partial or profiled run does not overwrite a
// complete one.
func (c *All) write(report *Report) error {
	if c.Out == "" {
		return nil
	}
	name := "latest"
	if c.Quick || len(c.Only) > 0 || c.History > 0 || c.Profile != "" || c.KafkaTLS || len(c.Setting) > 0 {
		name = "partial"
	}
	raw, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	errs := []error{
		os.WriteFile(filepath.Join(c.Out, name+".json"), append(raw, '\n'), 0o644),
		os.WriteFile(filepath.Join(c.Out, name+".md"), []byte(report.Markdown(name+".svg")), 0o644),
	}
	if picture := report.Picture(); picture != "" {
		errs = append(errs, os.WriteFile(filepath.Join(c.Out, name+".svg"), []byte(picture), 0o644))
	}
	return errors.Join(errs...)
}

// Serve is the service in a process of its own, with a CPU profile if asked for.
type Serve struct {
	Profile string `type:"path" placeholder:"DIR" help:"Write a CPU profile."`
}

// Run serves until the signal.
func (c *Serve) Run(a *app) error {
	if c.Profile != "" {
		f, err := os.Create(filepath.Join(c.Profile, "service-"+os.Getenv("METERPLEX_ROLES")+".pprof"))
		if err != nil {
			return fmt.Errorf("write the profile: %w", err)
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("begin the profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	if code := cli.Run(a.ctx, "", []string{"serve"}); code != 0 {
		return fmt.Errorf("the service ended with %d", code)
	}
	return nil
}

// Empty is an HTTP server that answers without work, to compare with.
type Empty struct{}

// Run serves until the signal.
func (*Empty) Run(a *app) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(Constant), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(a.ctx, func() { _ = server.Close() })
	a.report("The service answers at http://%s", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}
