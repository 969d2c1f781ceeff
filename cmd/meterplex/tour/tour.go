// Package tour shows the repair of a fault in a fold, on servers of its own: rebuild, diff,
// promotion and rollback, under traffic. It never touches a configured database or broker.
package tour

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/demo"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/usage"
)

// The planted fault: large amounts are capped, as in a column that is too narrow.
const (
	faultyFold     = projections.ProjectionUsage + "/cut"
	cutAt          = 999
	sentAmount     = 1500
	meteredFeature = "input_tokens"
)

func cutFold(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
	key, delta, err := usage.FoldV1(e, v)
	delta.Amount = min(delta.Amount, cutAt)
	return key, delta, err
}

// Exit codes of the commands.
const (
	yes = 0
	no  = 1
)

// Tour starts its own servers, releases a fault on them, and fixes it.
type Tour struct {
	Given     config.Config // only the choice of the pipe and the log's format are used
	DataDir   string        // of the servers; "" means a temporary one
	Commit    string
	NewClient func(base, key string) *client.Client
	Command   func(env config.Lookup, args []string) (exitCode int)
	Now       func() time.Time
	Stdout    io.Writer
	Stderr    io.Writer

	cfg      config.Config
	url      atomic.Pointer[string] // of the instance that clients use
	operator *client.Client
	tenant   *client.Client
	tenantID string
	step     int

	working     sync.WaitGroup
	stopClients func()
	readers     readers
	sent        atomic.Int64
}

// Run runs the tour.
func (t *Tour) Run(ctx context.Context) (err error) {
	began := t.Now()
	if t.DataDir == "" {
		if t.DataDir, err = os.MkdirTemp("", "meterplex-tour-"); err != nil {
			return fmt.Errorf("make a folder for the tour's data: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(t.DataDir)) }()
		if err := os.Chmod(t.DataDir, 0o755); err != nil { // the database may run as another user
			return fmt.Errorf("open the folder of the tour's data: %w", err)
		}
	}
	if t.cfg, err = t.settings(); err != nil {
		return err
	}
	own := &node.Servers{Logger: node.NewLogger(t.Stderr, t.cfg)}
	defer func() { err = errors.Join(err, own.Stop()) }()
	t.announce("Starting PostgreSQL and Kafka")
	if t.cfg, err = own.Start(ctx, t.cfg); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	t.stopClients = func() { stop(); t.working.Wait() }
	defer t.stopClients()
	if err := t.runSteps(ctx); err != nil {
		return err
	}
	fmt.Fprintf(t.Stdout, "\nThe tour took %.0f s.\n", t.Now().Sub(began).Seconds())
	return nil
}

// settings returns settings for the tour's own servers. It ignores most given settings,
// above all the database and the brokers, so that the fault cannot affect real data.
func (t *Tour) settings() (config.Config, error) {
	own, _, err := config.Load("", noVariable)
	own.Pipe, own.LogFormat, own.LogLevel = t.Given.Pipe, t.Given.LogFormat, slog.LevelWarn
	own.DataDir, own.HTTPAddr, own.BootstrapOperatorKey = t.DataDir, "127.0.0.1:0", demo.NewOperatorKey()
	return own, err
}

// noVariable is an empty environment.
func noVariable(string) (string, bool) { return "", false }

// runSteps runs the tour's steps.
func (t *Tour) runSteps(ctx context.Context) error {
	stopOld, err := t.deploy(ctx, projections.Version[usage.Fold]{Name: faultyFold, Fold: cutFold})
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{t.begin, t.promoteFault} {
		if err := step(ctx); err != nil {
			return errors.Join(err, stopOld())
		}
	}
	t.announce("The release that fixes it is deployed; the old one stops. Its figures stay: rows are updated only by the version of the " +
		"logic that made them")
	stopNew, err := t.deploy(ctx, projections.Version[usage.Fold]{Name: usage.V1, Fold: usage.FoldV1})
	time.Sleep(drainTime) // the old instance finishes its open requests
	if err = errors.Join(err, stopOld()); err != nil {
		return err
	}
	err = t.fix(ctx)
	t.stopClients()
	return errors.Join(err, stopNew())
}

// drainTime is how long an instance that gets no new requests runs before it stops.
const drainTime = 500 * time.Millisecond

// deploy starts an instance of a release whose new generations use the given fold
// version, and directs clients to it. It returns the function that stops it.
func (t *Tour) deploy(ctx context.Context, newest projections.Version[usage.Fold]) (stop func() error, err error) {
	n, err := node.Open(ctx, t.cfg, t.Commit, node.NewLogger(t.Stderr, t.cfg))
	if err != nil {
		return nil, err
	}
	n.Folds.Usage = n.Folds.Usage.With(faultyFold, cutFold).With(newest.Name, newest.Fold)
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	ready, ended := make(chan node.Endpoints, 1), make(chan error, 1)
	go func() { ended <- errors.Join(n.Run(running, ready), n.Close()) }()
	select {
	case at := <-ready:
		t.url.Store(&at.URL)
		t.operator = t.client(t.cfg.BootstrapOperatorKey)
		return func() error { end(); return <-ended }, nil
	case err := <-ended:
		end()
		return nil, fmt.Errorf("start the service: %w", err)
	}
}

func (t *Tour) client(key string) *client.Client { return t.NewClient(*t.url.Load(), key) }

// announce prints the number and the description of the next step.
func (t *Tour) announce(format string, args ...any) {
	t.step++
	fmt.Fprintf(t.Stdout, "\n%d. %s.\n", t.step, fmt.Sprintf(format, args...))
}

// do prints and runs a command, and fails if its exit code is not want.
func (t *Tour) do(want int, args ...string) error {
	var shown []string
	for _, arg := range args {
		if strings.ContainsAny(arg, " ,") {
			arg = `"` + arg + `"`
		}
		shown = append(shown, arg)
	}
	fmt.Fprintf(t.Stdout, "$ meterplex %s\n", strings.Join(shown, " "))
	cfg := t.cfg
	cfg.URL, cfg.Key = *t.url.Load(), t.cfg.BootstrapOperatorKey
	own := cfg.Client() // the tour must not use the shell's database or brokers
	env := func(name string) (value string, given bool) { value, given = own[name]; return value, given }
	if code := t.Command(env, args); code != want {
		return fmt.Errorf("meterplex %s ended with %d, not %d", strings.Join(args, " "), code, want)
	}
	return nil
}

// until polls done for up to five minutes; what describes the awaited state in the error.
func (t *Tour) until(ctx context.Context, what string, done func() (bool, error)) error {
	for deadline := time.Now().Add(5 * time.Minute); ; {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("it took more than five minutes until " + what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
