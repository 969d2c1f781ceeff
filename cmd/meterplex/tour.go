package main

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

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/usage"
)

// The planted fault: large amounts are capped, as in a column that is too narrow.
const (
	tourFault   = projections.ProjectionUsage + "/cut"
	tourCut     = 999
	tourAmount  = 1500
	tourFeature = "input_tokens"
)

func cutFold(e *events.Envelope) (usage.Key, usage.Delta, error) {
	key, delta, err := usage.FoldV1(e)
	delta.Amount = min(delta.Amount, tourCut)
	return key, delta, err
}

// Exit codes of the commands.
const (
	yes = 0
	no  = 1
)

// tour starts its own servers, releases a fault on them, and mends it.
type tour struct {
	given     Config // only the choice of the pipe and the log's format are used
	dataDir   string // of the servers; "" means a temporary one
	commit    string
	newClient func(base, key string) *client
	command   func(env lookup, args []string) (exitCode int)
	now       func() time.Time
	stdout    io.Writer
	stderr    io.Writer

	cfg      Config
	url      atomic.Pointer[string] // of the instance that clients use
	operator *client
	tenant   *client
	tenantID string
	step     int

	working     sync.WaitGroup
	stopClients func()
	readers     tourReaders
	sent        atomic.Int64
}

// run runs the tour.
func (t *tour) run(ctx context.Context) (err error) {
	began := t.now()
	if t.dataDir == "" {
		if t.dataDir, err = os.MkdirTemp("", "meterplex-tour-"); err != nil {
			return fmt.Errorf("make a folder for the tour's data: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(t.dataDir)) }()
		if err := os.Chmod(t.dataDir, 0o755); err != nil { // the database may run as another user
			return fmt.Errorf("open the folder of the tour's data: %w", err)
		}
	}
	if t.cfg, err = t.settings(); err != nil {
		return err
	}
	own := &servers{logger: newLogger(t.stderr, t.cfg)}
	defer func() { err = errors.Join(err, own.stop()) }()
	t.announce("Starting PostgreSQL and Kafka")
	if t.cfg, err = own.start(ctx, t.cfg); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	t.stopClients = func() { stop(); t.working.Wait() }
	defer t.stopClients()
	if err := t.runSteps(ctx); err != nil {
		return err
	}
	fmt.Fprintf(t.stdout, "\nThe tour took %.0f s.\n", t.now().Sub(began).Seconds())
	return nil
}

// settings returns settings for the tour's own servers. It ignores most given settings,
// above all the database and the brokers, so that the fault cannot affect real data.
func (t *tour) settings() (Config, error) {
	own, _, err := loadConfig("", noVariable)
	own.Pipe, own.LogFormat, own.LogLevel = t.given.Pipe, t.given.LogFormat, slog.LevelWarn
	own.DataDir, own.HTTPAddr, own.BootstrapOperatorKey = t.dataDir, "127.0.0.1:0", newOperatorKey()
	return own, err
}

// noVariable is an empty environment.
func noVariable(string) (string, bool) { return "", false }

// runSteps runs the tour's steps.
func (t *tour) runSteps(ctx context.Context) error {
	stopOld, err := t.deploy(ctx, projections.Version[usage.Fold]{Name: tourFault, Fold: cutFold})
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{t.begin, t.letTheFaultLive} {
		if err := step(ctx); err != nil {
			return errors.Join(err, stopOld())
		}
	}
	t.announce("The release that mends it is deployed; the old one stops. Its figures stay: a generation is only ever fed by the fold that it was made with")
	stopNew, err := t.deploy(ctx, projections.Version[usage.Fold]{Name: usage.V1, Fold: usage.FoldV1})
	time.Sleep(drainTime) // the old instance finishes its open requests
	if err = errors.Join(err, stopOld()); err != nil {
		return err
	}
	err = t.mend(ctx)
	t.stopClients()
	return errors.Join(err, stopNew())
}

// drainTime is how long an instance that gets no new requests runs before it stops.
const drainTime = 500 * time.Millisecond

// deploy starts an instance of a release whose new generations use the given fold
// version, and directs clients to it. It returns the function that stops it.
func (t *tour) deploy(ctx context.Context, newest projections.Version[usage.Fold]) (stop func() error, err error) {
	n, err := openNode(ctx, t.cfg, t.commit, newLogger(t.stderr, t.cfg))
	if err != nil {
		return nil, err
	}
	n.folds.Usage = n.folds.Usage.With(tourFault, cutFold).With(newest.Name, newest.Fold)
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	ready, ended := make(chan Endpoints, 1), make(chan error, 1)
	go func() { ended <- errors.Join(n.run(running, ready), n.close()) }()
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

func (t *tour) client(key string) *client { return t.newClient(*t.url.Load(), key) }

// announce prints the number and the description of the next step.
func (t *tour) announce(format string, args ...any) {
	t.step++
	fmt.Fprintf(t.stdout, "\n%d. %s.\n", t.step, fmt.Sprintf(format, args...))
}

// do prints and runs a command, and fails if its exit code is not want.
func (t *tour) do(want int, args ...string) error {
	var shown []string
	for _, arg := range args {
		if strings.ContainsAny(arg, " ,") {
			arg = `"` + arg + `"`
		}
		shown = append(shown, arg)
	}
	fmt.Fprintf(t.stdout, "$ meterplex %s\n", strings.Join(shown, " "))
	env := func(name string) (string, bool) {
		switch name {
		case "METERPLEX_URL":
			return *t.url.Load(), true
		case "METERPLEX_KEY":
			return t.cfg.BootstrapOperatorKey, true
		}
		return "", false // the tour must not use the shell's database or brokers
	}
	if code := t.command(env, args); code != want {
		return fmt.Errorf("meterplex %s ended with %d, not %d", strings.Join(args, " "), code, want)
	}
	return nil
}

// until polls done for up to a minute; what describes the awaited state in the error.
func (t *tour) until(ctx context.Context, what string, done func() (bool, error)) error {
	for deadline := time.Now().Add(time.Minute); ; {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("it took more than a minute until " + what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
