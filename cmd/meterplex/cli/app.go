// Package cli is the command line: one table of the commands of one request, and a file for each other command.
//
// All commands except serve, migrate, demo, tour and verify use only the service's
// HTTP API, as any other client does. The package holds no metering rules.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
	"github.com/meterplex/meterplex/commands"
)

// Exit codes: a script can branch on them and tell "no" from "unknown".
const (
	exitYes     = 0
	exitNo      = 1 // the answer is no: not allowed, not found, refused, not all accepted
	exitUnknown = 2 // no answer: bad usage, no service, no permission
)

// errNo ends a command that has already printed a negative answer.
var errNo = errors.New("the answer is no")

// clientFlags are the flags of every command.
type clientFlags struct {
	Output   string        `short:"o" enum:"table,json,ndjson,csv" default:"table" placeholder:"FORMAT" help:"How to print data: table, json, ndjson or csv."`
	Config   string        `name:"config" placeholder:"FILE" help:"Read settings from KEY=VALUE lines (METERPLEX_CONFIG)."`
	RetryFor time.Duration `name:"retry-for" default:"15s" placeholder:"DURATION" help:"How long a request is retried while the service is unreachable or overloaded (default 15s)."`
	config.Connection
}

// grammar holds the nouns. The commands of one request are not in it: see requests.
type grammar struct {
	Serve   ServeCmd   `cmd:"" help:"Run the service."`
	Demo    DemoCmd    `cmd:"" help:"Run the service with real usage in it, and drive it."`
	Tour    TourCmd    `cmd:"" help:"Take a guided tour of the service."`
	Migrate MigrateCmd `cmd:"" help:"Bring the database's schema up to date."`

	Tenants       TenantsCmd     `cmd:"" help:"Customers whose usage is metered."`
	Keys          struct{}       `cmd:"" help:"API keys of tenants, and operator keys."`
	Features      struct{}       `cmd:"" help:"Features that tenants can use."`
	Plans         struct{}       `cmd:"" help:"Named sets of entitlements."`
	Prices        struct{}       `cmd:"" help:"Prices of amounts, by which usage is charged."`
	Subscriptions struct{}       `cmd:"" help:"Which tenant has which plan."`
	Usage         UsageCmd       `cmd:"" help:"Usage events and their sums."`
	Events        EventsCmd      `cmd:"" help:"The event log: the whole history."`
	Entitlements  struct{}       `cmd:"" help:"Features that a tenant may use now."`
	DeadLetters   struct{}       `cmd:"" name:"dead-letters" help:"Events that failed, with reasons and outcomes."`
	Replay        struct{}       `cmd:"" help:"Publish or consume events again."`
	Periods       struct{}       `cmd:"" help:"Closed periods and their frozen figures."`
	Adjustments   struct{}       `cmd:"" help:"Differences of closed periods, to approve or to waive."`
	Pushes        struct{}       `cmd:"" help:"Amounts that a billing provider counts."`
	Sagas         struct{}       `cmd:"" help:"Processes of several steps, e.g. the close of a period."`
	Webhooks      struct{}       `cmd:"" help:"Endpoints that get events of a tenant."`
	Thresholds    struct{}       `cmd:"" help:"Used amounts at which a tenant gets an event."`
	Outbox        OutboxCmd      `cmd:"" help:"The log on its way to the topics."`
	Projections   ProjectionsCmd `cmd:"" help:"Read models: their rebuilds, differences and proof."`
	Schemas       SchemasCmd     `cmd:"" help:"JSON Schemas of the payloads of events."`
	System        SystemCmd      `cmd:"" help:"The service as a whole."`
	Doctor        DoctorCmd      `cmd:"" help:"Check clocks, servers, access and the pipeline, each with a remedy."`
	Verify        VerifyCmd      `cmd:"" help:"Prove the figures: every accepted event is in one place, every projection agrees with the log."`

	ConfigNoun ConfigCmd     `cmd:"" name:"config" help:"Settings and where they come from."`
	Version    VersionCmd    `cmd:"" help:"Show which build this is."`
	Help       HelpCmd       `cmd:"" help:"Show the help of a command, as --help does."`
	Completion CompletionCmd `cmd:"" help:"Write a completion script for a shell."`
}

const description = `Meterplex meters usage: it takes usage events, counts each exactly once, and answers what a tenant has used and may use.

Data goes to stdout, everything else to stderr. Exit codes: 0 yes, 1 the answer is no, 2 it could not be answered.

A key is given by METERPLEX_KEY, the service's address by METERPLEX_URL.`

// service runs the whole service until ctx ends, and sends its endpoints on ready.
type service func(ctx context.Context, cfg config.Config, ready chan<- node.Endpoints) error

// app holds the environment shared by all commands.
type app struct {
	ctx     context.Context
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
	env     config.Lookup
	names   []string // all environment variables, as NAME=VALUE
	now     func() time.Time
	commit  string // set by the linker, or empty
	flags   clientFlags
	parser  *kong.Kong
	reason  string // of a change, "": not given
	service service
	records *slog.Logger // logs messages if stderr must hold only log records; nil: messages are plain text
}

// Run runs a command of this process, and returns its exit code. The linker sets commit if the
// toolchain does not record it.
func Run(ctx context.Context, commit string, args []string) int {
	revision, _ := buildCommit(commit)
	a := &app{
		ctx: ctx, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		env: os.LookupEnv, names: os.Environ(), now: time.Now, commit: commit,
		service: func(ctx context.Context, cfg config.Config, ready chan<- node.Endpoints) error {
			return node.Serve(ctx, cfg, revision, ready)
		},
	}
	return a.run(args)
}

// run parses and runs a command, and returns its exit code.
func (a *app) run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(a.stderr, firstSteps)
		return exitUnknown
	}
	if args[0] == "--version" {
		args = append([]string{"version"}, args[1:]...)
	}
	var c clientFlags
	parser, err := a.parserFor(&c, args[0])
	if err != nil {
		panic(fmt.Sprintf("the command line's own definition is wrong: %v", err))
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(a.stderr, "meterplex: %v%s\nRun meterplex --help, or --help after a command.\n", err, flagHint(args))
		return exitUnknown
	}
	a.flags, a.parser = c, parser
	if l := callOf(parsed.Selected()); l != nil {
		return a.exitCode(l.execute(a))
	}
	return a.exitCode(parsed.Run(a))
}

// parserFor returns a parser of the noun that a command line begins with, or else of all nouns: to read their definitions takes longer than
// most commands.
func (a *app) parserFor(c *clientFlags, first string) (*kong.Kong, error) {
	nouns := reflect.VisibleFields(reflect.TypeFor[grammar]())
	at := slices.IndexFunc(nouns, func(noun reflect.StructField) bool { return first == wordOf(noun) })
	if at >= 0 && first != "help" && first != "completion" { // they show all nouns
		nouns = nouns[at : at+1]
	}
	var options []kong.Option
	for _, noun := range nouns {
		definition := reflect.New(nounType(wordOf(noun), noun.Type)).Interface()
		options = append(options, kong.DynamicCommand(wordOf(noun), noun.Tag.Get("help"), "", definition, string(noun.Tag)))
	}
	return kong.New(c, append(options,
		kong.Name("meterplex"),
		kong.Description(description),
		kong.Writers(a.stdout, a.stderr),
		kong.Vars{"tenant_scopes": strings.Join(commands.TenantScopes(), ", "), "operator_scopes": strings.Join(commands.OperatorScopes(), ", ")},
		kong.ValueFormatter(config.DescribeFlag),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100, ValueFormatter: config.DescribeFlag}),
		kong.PostBuild(describeRequests),
	)...)
}

// firstSteps is the answer to a call without arguments.
const firstSteps = `meterplex: expected a command, e.g.
  meterplex demo     run the service with real usage in it
  meterplex serve    run the service
  meterplex tour     take a guided tour of the service
  meterplex --help   list all commands
`

// flagHint names the flag to use instead of --port or --url.
func flagHint(args []string) string {
	for i, arg := range args {
		name, value, given := strings.Cut(arg, "=")
		if !given && i+1 < len(args) {
			value = args[i+1]
		}
		switch name {
		case "--port", "-p":
			return ": the address holds the port: --http-addr 127.0.0.1:" + cmp.Or(value, "8080")
		case "--url":
			return ": nothing was sent. --server is the service's address; the URL of a webhook is an argument: webhooks create URL"
		}
	}
	return ""
}

func (a *app) exitCode(err error) int {
	if err == nil {
		return exitYes
	}
	if errors.Is(err, errNo) {
		return exitNo
	}
	if a.ctx.Err() != nil {
		a.complain("stopped by a signal")
		return exitUnknown
	}
	a.complain(err.Error())
	if p, ok := errors.AsType[*client.Problem](err); ok && p.IsAnswer() {
		return exitNo
	}
	return exitUnknown
}

// report prints a message, not data, to stderr.
func (a *app) report(format string, args ...any) {
	if a.records != nil {
		a.records.Info(fmt.Sprintf(format, args...))
		return
	}
	fmt.Fprintf(a.stderr, format+"\n", args...)
}

// complain prints the reason for which a command fails.
func (a *app) complain(why string) {
	if a.records != nil {
		a.records.Error(why)
		return
	}
	fmt.Fprintf(a.stderr, "meterplex: %s\n", why)
}

// HelpCmd shows a command's help.
type HelpCmd struct {
	Command []string `arg:"" optional:"" help:"The command, e.g. usage import."`
}

// Run ends the process if the command exists.
func (c *HelpCmd) Run(a *app) error {
	_, err := a.parser.Parse(append(c.Command, "--help"))
	return err
}
