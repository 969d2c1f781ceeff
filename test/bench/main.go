package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// app holds the inputs and outputs of a command.
type app struct {
	ctx            context.Context
	stdout, stderr io.Writer
	env            config.Lookup
	now            func() time.Time
	flags          *grammar
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills the process at once
	a := &app{ctx: ctx, stdout: os.Stdout, stderr: os.Stderr, env: os.LookupEnv, now: time.Now}
	os.Exit(a.run(os.Args[1:]))
}

// errRefused ends a measurement in which requests were refused.
var errRefused = errors.New("requests were refused: the service, or the tenant's rate, is at its bound")

// run runs a command, and returns 0: measured; 1: measured, and requests were refused; 2: not measured.
func (a *app) run(args []string) int {
	a.flags = new(grammar)
	parser := kong.Must(a.flags, kong.Name("bench"), kong.Description("Measure the service beside the raw limits of its servers."),
		kong.Writers(a.stdout, a.stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	parsed, err := parser.Parse(args)
	if err == nil {
		err = parsed.Run(a)
	}
	if err != nil {
		a.report("bench: %v", err)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errRefused):
		return 1
	}
	return 2
}

// object prints one JSON object.
func (a *app) object(raw json.RawMessage) error {
	return output.Printer{Format: a.flags.Output, Out: a.stdout}.Object(raw)
}

// report prints a message for people.
func (a *app) report(format string, args ...any) { fmt.Fprintf(a.stderr, format+"\n", args...) }
