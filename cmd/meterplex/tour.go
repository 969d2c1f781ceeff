package main

import (
	"context"
	"errors"
	"fmt"
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

// TourCmd groups the tour commands.
type TourCmd struct {
	Bugfix TourBugfix `cmd:"" help:"A fault in a fold is found, mended, compared, promoted and taken back, while readers go on."`
}

// TourBugfix shows a rebuild from end to end.
type TourBugfix struct {
	DataDir string `type:"path" placeholder:"DIR" help:"The folder of the servers' data; a temporary one if not given."`
}

// Help returns the long help text.
func (TourBugfix) Help() string {
	return `Starts a PostgreSQL and a Kafka of its own, lets traffic run against a release whose fold of usage has a fault, deploys the release that mends it, rebuilds the figures beside the live ones, shows the difference and the events behind it, promotes, rolls back and promotes again. Four readers ask for the figures all the while: none of their reads may fail, and none may see figures of both. Each step prints the command that it runs. Exit code 0 says that all of it was so.`
}

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

// tour is the state of a running tour.
type tour struct {
	app      *app
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

// Run runs the tour.
func (c *TourBugfix) Run(a *app) (err error) {
	began := a.now()
	if c.DataDir == "" {
		if c.DataDir, err = os.MkdirTemp("", "meterplex-tour-"); err != nil {
			return fmt.Errorf("make a folder for the tour's data: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(c.DataDir)) }()
		if err := os.Chmod(c.DataDir, 0o755); err != nil { // the database may run as another user
			return fmt.Errorf("open the folder of the tour's data: %w", err)
		}
	}
	t := &tour{app: a}
	if t.cfg, err = c.config(a); err != nil {
		return err
	}
	own := &servers{logger: newLogger(a.stderr, t.cfg)}
	defer func() { err = errors.Join(err, own.stop()) }()
	t.announce("Starting PostgreSQL and Kafka")
	if t.cfg, err = own.start(a.ctx, t.cfg); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(a.ctx)
	t.stopClients = func() { stop(); t.working.Wait() }
	defer t.stopClients()
	if err := t.runSteps(ctx); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "\nThe tour took %.0f s.\n", a.now().Sub(began).Seconds())
	return nil
}

// config returns settings for the tour's own servers. It ignores most configured settings,
// above all the database and the brokers, so that the fault cannot affect real data.
func (c *TourBugfix) config(a *app) (Config, error) {
	given, _, err := a.config(ServiceFlags{})
	if err != nil {
		return Config{}, err
	}
	own, _, err := resolve(nil, func(string) (string, bool) { return "", false }, nil)
	own.Pipe, own.LogFormat, own.LogLevel = given.Pipe, given.LogFormat, slog.LevelWarn
	own.DataDir, own.HTTPAddr, own.BootstrapOperatorKey = c.DataDir, "127.0.0.1:0", newOperatorKey()
	return own, err
}

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
	n, err := openNode(ctx, t.cfg, newLogger(t.app.stderr, t.cfg))
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

func (t *tour) client(key string) *client { return t.app.clientFor(*t.url.Load(), key) }

// announce prints the number and the description of the next step.
func (t *tour) announce(format string, args ...any) {
	t.step++
	fmt.Fprintf(t.app.stdout, "\n%d. %s.\n", t.step, fmt.Sprintf(format, args...))
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
	fmt.Fprintf(t.app.stdout, "$ meterplex %s\n", strings.Join(shown, " "))
	console := *t.app
	console.env = func(name string) (string, bool) {
		switch name {
		case "METERPLEX_URL":
			return *t.url.Load(), true
		case "METERPLEX_KEY":
			return t.cfg.BootstrapOperatorKey, true
		}
		return "", false // the tour must not use the shell's database or brokers
	}
	if code := console.run(args); code != want {
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
