// Package app holds the shared parts of the commands: the environment, the client, printing, and the form of the commands of one
// request.
package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// Exit codes: a script can branch on them and tell "no" from "unknown".
const (
	ExitYes     = 0
	ExitNo      = 1 // the answer is no: not allowed, not found, refused, not all accepted
	ExitUnknown = 2 // no answer: bad usage, no service, no permission
)

// ErrNo ends a command that has already printed a negative answer.
var ErrNo = errors.New("the answer is no")

// ClientFlags are the flags of every command.
type ClientFlags struct {
	Output   string        `short:"o" enum:"table,json,ndjson,csv" default:"table" placeholder:"FORMAT" help:"table, json, ndjson or csv."`
	Config   string        `name:"config" placeholder:"FILE" help:"Read settings from KEY=VALUE lines (METERPLEX_CONFIG)."`
	RetryFor time.Duration `default:"15s" placeholder:"DURATION" help:"How long to retry an unreachable or overloaded service (default 15s)."`
	config.Connection
}

// App holds the environment shared by all commands.
type App struct {
	Ctx     context.Context
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Env     config.Lookup
	Names   []string // all environment variables, as NAME=VALUE
	Now     func() time.Time
	Flags   ClientFlags
	reason  string       // of a change, "": not given
	Records *slog.Logger // logs messages if stderr must hold only log records; nil: messages are plain text
}

func (a *App) ExitCode(err error) int {
	if err == nil {
		return ExitYes
	}
	if errors.Is(err, ErrNo) {
		return ExitNo
	}
	if a.Ctx.Err() != nil {
		a.Complain("stopped by a signal")
		return ExitUnknown
	}
	a.Complain(err.Error())
	if p, ok := errors.AsType[*client.Problem](err); ok && p.IsAnswer() {
		return ExitNo
	}
	return ExitUnknown
}

// Report prints a message, not data, to stderr.
func (a *App) Report(format string, args ...any) {
	if a.Records != nil {
		a.Records.Info(fmt.Sprintf(format, args...))
		return
	}
	fmt.Fprintf(a.Stderr, format+"\n", args...)
}

// Complain prints the reason for which a command fails.
func (a *App) Complain(why string) {
	if a.Records != nil {
		a.Records.Error(why)
		return
	}
	fmt.Fprintf(a.Stderr, "meterplex: %s\n", why)
}

// Config resolves the settings from the client's flags and the command's own flags.
func (a *App) Config(more ...any) (config.Config, []config.Resolved, error) {
	return config.Load(a.Flags.Config, a.Env, append([]any{a.Flags.Connection}, more...)...)
}

// ReportUnknown warns of variables that look like settings but are unknown.
func (a *App) ReportUnknown() {
	for _, name := range config.Unknown(a.Names) {
		a.Report("%s is set, and is no setting: meterplex config print lists those that are", output.Printable(name))
	}
}

var ErrNoTerminal = errors.New("there is no terminal to ask on: give --yes, or --dry-run to see the effect")

// Agreed asks on the terminal; any reply except yes means no.
func (a *App) Agreed(question string) (bool, error) {
	in, ok := a.Stdin.(*os.File)
	if !ok || !output.IsTerminal(in) {
		return false, ErrNoTerminal
	}
	fmt.Fprintf(a.Stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if errors.Is(err, io.EOF) {
		return false, ErrNoTerminal
	}
	if err != nil {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}

// undecided is an error that leaves the question unanswered: exit code 2.
type undecided struct{ cause error }

func (u *undecided) Error() string { return u.cause.Error() }

// CannotTell wraps a refusal, so that it is not mistaken for the answer no.
func CannotTell(err error) error { return &undecided{err} }

// OrNo returns the error of a negative answer.
func OrNo(yes bool) error {
	if yes {
		return nil
	}
	return ErrNo
}
