// Package cli is the command line: the nouns, and the list of the commands of one request. The packages below it have the commands, by
// subject; package app has their shared parts.
//
// All commands except serve, migrate, demo, tour and verify use only the service's
// HTTP API, as any other client does. No command holds a metering rule.
package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/events"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/operate"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/repair"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/tenants"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/usage"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
	"github.com/meterplex/meterplex/commands"
)

// grammar holds the nouns. The commands of one request are not in it: see requests.
type grammar struct {
	Serve   operate.ServeCmd   `cmd:"" help:"Run the service."`
	Demo    operate.DemoCmd    `cmd:"" help:"Run the service with real usage in it, and drive it."`
	Tour    TourCmd            `cmd:"" help:"Take a guided tour of the service."`
	Migrate operate.MigrateCmd `cmd:"" help:"Bring the database's schema up to date."`

	Tenants       tenants.Cmd           `cmd:"" help:"Customers whose usage is metered."`
	Keys          struct{}              `cmd:"" help:"API keys of tenants, and operator keys."`
	Features      struct{}              `cmd:"" help:"Features that tenants can use."`
	Plans         struct{}              `cmd:"" help:"Named sets of entitlements."`
	Prices        struct{}              `cmd:"" help:"Prices of amounts, by which usage is charged."`
	Subscriptions struct{}              `cmd:"" help:"Which tenant has which plan."`
	Usage         usage.Cmd             `cmd:"" help:"Usage events and their sums."`
	Events        events.Cmd            `cmd:"" help:"The event log: the whole history."`
	Entitlements  struct{}              `cmd:"" help:"Features that a tenant may use now."`
	DeadLetters   struct{}              `cmd:"" name:"dead-letters" help:"Events that failed, with reasons and outcomes."`
	Replay        struct{}              `cmd:"" help:"Publish or consume events again."`
	Periods       struct{}              `cmd:"" help:"Closed periods and their frozen figures."`
	Adjustments   struct{}              `cmd:"" help:"Differences of closed periods, to approve or to waive."`
	Pushes        struct{}              `cmd:"" help:"Amounts that a billing provider counts."`
	Sagas         struct{}              `cmd:"" help:"Processes of several steps, e.g. the close of a period."`
	Webhooks      tenants.WebhooksCmd   `cmd:"" help:"Endpoints that get events of a tenant."`
	Thresholds    struct{}              `cmd:"" help:"Used amounts at which a tenant gets an event."`
	Outbox        repair.OutboxCmd      `cmd:"" help:"The log on its way to the topics."`
	Projections   repair.ProjectionsCmd `cmd:"" help:"Read models: their rebuilds, differences and proof."`
	Schemas       events.SchemasCmd     `cmd:"" help:"JSON Schemas of the payloads of events."`
	System        operate.SystemCmd     `cmd:"" help:"The service as a whole."`
	Doctor        operate.DoctorCmd     `cmd:"" help:"Check clocks, servers, access and the pipeline, each with a remedy."`
	Verify        operate.VerifyCmd     `cmd:"" help:"Prove the figures: each accepted event counts once, and projections agree with the log."`

	ConfigNoun operate.ConfigCmd `cmd:"" name:"config" help:"Settings and where they come from."`
	Version    VersionCmd        `cmd:"" help:"Show which build this is."`
	Help       HelpCmd           `cmd:"" help:"Show the help of a command, as --help does."`
	Completion CompletionCmd     `cmd:"" help:"Write a completion script for a shell."`
}

const description = `Meterplex meters usage: it accepts usage events, counts each exactly once, and shows how much a tenant has used
and may still use.

Data goes to stdout, all other output to stderr. Exit codes: 0 yes, 1 the answer is no, 2 it could not be answered.

A key is given by METERPLEX_KEY, the service's address by METERPLEX_URL.`

// program is the program in its environment.
type program struct {
	*app.App
	commit  string // set by the linker, or empty
	parser  *kong.Kong
	service operate.Service
}

// Run runs a command of this process, and returns its exit code. The linker sets commit if the
// toolchain does not record it.
func Run(ctx context.Context, commit string, args []string) int {
	revision, _ := buildCommit(commit)
	p := &program{
		App: &app.App{
			Ctx: ctx, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
			Env: os.LookupEnv, Names: os.Environ(), Now: time.Now,
		},
		commit: commit,
		service: func(ctx context.Context, cfg config.Config, ready chan<- node.Endpoints) error {
			return node.Serve(ctx, cfg, revision, ready)
		},
	}
	return p.run(args)
}

// run parses and runs a command, and returns its exit code.
func (p *program) run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.Stderr, firstSteps)
		return app.ExitUnknown
	}
	if args[0] == "--version" {
		args = append([]string{"version"}, args[1:]...)
	}
	var c app.ClientFlags
	parser, err := p.parserFor(&c, args[0])
	if err != nil {
		panic(fmt.Sprintf("the command line's own definition is wrong: %v", err))
	}
	parsed, err := parser.Parse(args)
	if err == nil {
		err = emptyValue(parsed)
	}
	if err != nil {
		fmt.Fprintf(p.Stderr, "meterplex: %v%s\nRun meterplex --help, or --help after a command.\n", lacking(err), flagHint(args))
		return app.ExitUnknown
	}
	p.Flags, p.parser = c, parser
	if l := app.CallOf(requests(), parsed.Selected()); l != nil {
		return p.ExitCode(l.Execute(p.App))
	}
	return p.ExitCode(parsed.Run(p, p.App, p.service))
}

// parserFor returns a parser of the noun that a command line begins with, or else of all nouns: to read their definitions takes longer than
// most commands.
func (p *program) parserFor(c *app.ClientFlags, first string) (*kong.Kong, error) {
	nouns := reflect.VisibleFields(reflect.TypeFor[grammar]())
	at := slices.IndexFunc(nouns, func(noun reflect.StructField) bool { return first == app.WordOf(noun) })
	if at >= 0 && first != "help" && first != "completion" { // they show all nouns
		nouns = nouns[at : at+1]
	}
	var options []kong.Option
	for _, noun := range nouns {
		definition := reflect.New(app.NounType(requests(), app.WordOf(noun), noun.Type)).Interface()
		options = append(options, kong.DynamicCommand(app.WordOf(noun), noun.Tag.Get("help"), "", definition, string(noun.Tag)))
	}
	return kong.New(c, append(options,
		kong.Name("meterplex"),
		kong.Description(description),
		kong.Writers(p.Stdout, p.Stderr),
		kong.Vars{"tenant_scopes": strings.Join(commands.TenantScopes(), ", "), "operator_scopes": strings.Join(commands.OperatorScopes(),
			", ")},
		kong.ValueFormatter(config.DescribeFlag),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100,
			ValueFormatter: config.DescribeFlag}),
		kong.PostBuild(app.DescribeRequests(requests())),
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

// HelpCmd shows a command's help.
type HelpCmd struct {
	Command []string `arg:"" optional:"" help:"The command, e.g. usage import."`
}

// Run ends the process if the command exists.
func (c *HelpCmd) Run(p *program) error {
	_, err := p.parser.Parse(append(c.Command, "--help"))
	return err
}
