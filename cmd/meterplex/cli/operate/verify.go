package operate

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/repair"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/verify"
)

// VerifyCmd verifies a running service from outside.
type VerifyCmd struct {
	Only      []string      `enum:"http,database,topics" placeholder:"GROUP,…" help:"Only http, database, topics; each must be reachable."`
	All       bool          `help:"Require every check: a skipped check counts as undetermined (exit code 2)."`
	Partition []int16       `placeholder:"N,…" help:"Check only these partitions of the log, 0 to 31, as a sample."`
	Watch     time.Duration `default:"2s" placeholder:"DURATION" help:"Least time between the two reads that are compared (default 2s)."`
	Idle      time.Duration `default:"30s" placeholder:"DURATION" help:"How long the service may be idle in a transaction (default 30s)."`
	VerifyFlags
}

// VerifyFlags holds the settings of the service's database and topics. Their help
// differs from ServiceFlags: verify never starts an embedded server for a missing one.
type VerifyFlags struct {
	VerifyDatabaseFlags
	KafkaBrokers *string `name:"kafka-brokers" placeholder:"HOST:PORT,…" setting:"KAFKA_BROKERS" help:"The service's brokers."`
	config.KafkaAccess
}

// VerifyDatabaseFlags holds the settings of the checks without topics.
type VerifyDatabaseFlags struct {
	DatabaseURL *string `name:"database-url" placeholder:"URL" setting:"DATABASE_URL" help:"The service's PostgreSQL."`
	Pipe        *string `name:"pipe" placeholder:"NAME" setting:"METERPLEX_PIPE" help:"The message pipe: postgres has no topics to check."`
	TopicPrefix *string `name:"topic-prefix" placeholder:"TEXT" setting:"METERPLEX_TOPIC_PREFIX" help:"Put before the name of each topic."`
}

// Help returns the long help text.
func (VerifyCmd) Help() string {
	return `There are three groups of checks. Each runs if its settings are present.

http requests the balance check (accepted = applied + rejected + undecided + unapplied + parked) from the service, and a comparison of
each projection with the log. It needs METERPLEX_URL and a key with the scope billing.

database reads the log and the tables directly, with its own SQL and decoding. It needs DATABASE_URL with a login that is a member of
meterplex_worker, like the service's own, or a superuser: row level security hides the rows from any other login. It only reads.

topics reads the topics directly, from their first record to their last, and compares each record with the log. It needs KAFKA_BROKERS
and DATABASE_URL.

Checks without access are not made; the last line names the missing settings. Exit code 0: every check that ran holds; 1: a check does
not hold; 2: a check is undetermined. With --all, a check that did not run counts as undetermined. verify repairs nothing;
docs/how-to/verify.md explains the proof, the cost and the next step of each line.`
}

// Run prints each check with its figures.
func (c *VerifyCmd) Run(a *app.App) error {
	for _, p := range c.Partition {
		if p < 0 || p > 31 {
			return fmt.Errorf("--partition %d: expected 0 to 31", p)
		}
	}
	var checks []verify.Check
	if c.wants("http") {
		asked, err := serviceChecks(a)
		if err != nil {
			return err
		}
		checks = asked
	}
	if c.wants("database") || c.wants("topics") {
		looked, err := c.runChecks(a)
		if err != nil {
			return err
		}
		checks = append(checks, looked...)
	}
	return c.print(a, checks)
}

// print prints each check, but in a table those that were skipped, which the last line counts.
func (c *VerifyCmd) print(a *app.App, checks []verify.Check) error {
	rows := a.Rows("check", "holds", "figures")
	for i := range checks {
		if !checks[i].Looked && a.Flags.Output == "table" {
			continue
		}
		checks[i].Figures = output.Printable(strings.ReplaceAll(checks[i].Figures, "\n", ";"))
		raw, err := json.Marshal(&checks[i])
		if err == nil {
			err = rows.Row(raw)
		}
		if err != nil {
			return err
		}
	}
	if err := rows.Close(); err != nil {
		return err
	}
	return c.outcome(a, checks)
}

func (c *VerifyCmd) wants(what string) bool { return len(c.Only) == 0 || slices.Contains(c.Only, what) }

// outcome returns the command's error: a failed check outweighs an unknown one.
func (c *VerifyCmd) outcome(a *app.App, checks []verify.Check) error {
	skipped, outcome := verify.Judge(checks, c.All || len(c.Only) > 0)
	if skipped > 0 {
		var why []string
		for _, one := range checks {
			if !one.Looked {
				why = append(why, strings.TrimPrefix(one.Figures, "not checked: "))
			}
		}
		a.Report("%d of %d checks were skipped: %s", skipped, len(checks), counted(why))
	}
	if errors.Is(outcome, verify.ErrDoesNotHold) {
		return app.ErrNo
	}
	return outcome
}

// counted lists texts in the order of their first use, each with its number.
func counted(texts []string) string {
	number := map[string]int{}
	var list []string
	for _, text := range texts {
		if number[text]++; number[text] == 1 {
			list = append(list, text)
		}
	}
	for i, text := range list {
		list[i] = fmt.Sprintf("%s (%d)", text, number[text])
	}
	return strings.Join(list, ", ")
}

// runChecks runs the requested checks of the database and the topics.
func (c *VerifyCmd) runChecks(a *app.App) ([]verify.Check, error) {
	flags := any(c.VerifyFlags)
	if !c.wants("topics") {
		flags = c.VerifyDatabaseFlags
	}
	cfg, _, err := a.Config(flags)
	if err != nil {
		return nil, err
	}
	options := verify.Config{
		DatabaseURL: cfg.DatabaseURL, TopicPrefix: cfg.TopicPrefix, Partitions: c.Partition, Watch: c.Watch, Idle: c.Idle, Now: a.Now,
		Progress: func(text string) { a.Report("verify: %s", text) },
	}
	switch {
	case cfg.Pipe == config.PipePostgres:
		a.Report("PostgreSQL is the pipe: no topics to check")
	case !c.wants("topics"):
		options.NoTopics = "not requested"
	case len(cfg.Kafka.Brokers) == 0:
		options.NoTopics = "set KAFKA_BROKERS"
	default:
		secure, err := cfg.Kafka.TLSConfig(slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		options.Kafka = verify.Brokers(cfg.Kafka.Brokers, secure, cfg.Kafka.SASLMechanism, cfg.Kafka.SASLUsername, cfg.Kafka.SASLPassword)
	}
	checks, err := verify.Run(a.Ctx, options)
	checks = slices.DeleteFunc(checks, func(one verify.Check) bool {
		return !c.wants(one.Needs) || one.Needs == "topics" && cfg.Pipe == config.PipePostgres
	})
	if err == nil && len(checks) == 0 {
		err = errors.New("no check to run")
	}
	return checks, err
}

// serviceChecks returns the checks that the service runs itself.
func serviceChecks(a *app.App) ([]verify.Check, error) {
	cl, err := a.NewClient()
	if err != nil {
		return nil, err
	}
	return verify.ServiceChecks(verifiedService{a, cl})
}

// verifiedService implements verify.Service.
type verifiedService struct {
	app    *app.App
	client *client.Client
}

func (s verifiedService) Identity() (json.RawMessage, error) {
	return s.client.Get(s.app.Ctx, "/system/identity", nil)
}

func (s verifiedService) Projections() ([]json.RawMessage, error) { return repair.Projections(s.app) }

func (s verifiedService) VerifyProjection(name string) (verify.ProjectionVerify, error) {
	v, err := repair.CompareProjection(s.app, client.Request{Method: http.MethodPost, Path: client.Path("projections", name, "verify"),
		Header: http.Header{"Idempotency-Key": {rand.Text()}}, Body: []byte(`{"reason":"meterplex verify"}`)})
	if err != nil {
		return verify.ProjectionVerify{}, err
	}
	return verify.ProjectionVerify{RebuildID: v.RebuildID, State: v.State, Failure: v.Failure, Differs: v.Differs}, nil
}
