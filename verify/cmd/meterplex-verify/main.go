// Command meterplex-verify checks the promises of a running service from outside. The command and its imports share no code with the
// service.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/verify"
)

const usage = `meterplex-verify checks a running service from outside. It only reads. docs/how-to/verify.md explains each line.

The environment says what it can reach, as for the service itself:
  DATABASE_URL                  a login that is a member of meterplex_worker; METERPLEX_TOPIC_PREFIX
  KAFKA_BROKERS                 and KAFKA_TLS_ENABLED, KAFKA_TLS_CA, KAFKA_TLS_CERT, KAFKA_TLS_KEY, KAFKA_SASL_MECHANISM, KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD
  METERPLEX_URL, METERPLEX_KEY  the service and a key with the scope billing

Exit code 0: every check that ran holds; 1: a check does not hold; 2: a check is undetermined.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, verify.ErrDoesNotHold):
		os.Exit(1)
	default:
		fmt.Fprintf(os.Stderr, "meterplex-verify: %v\n", err)
		os.Exit(2)
	}
}

// run runs the checks and prints them.
func run(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("meterplex-verify", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { fmt.Fprint(stderr, usage); f.PrintDefaults() }
	all := f.Bool("all", false, "require every check: one that is skipped counts as undetermined")
	asJSON := f.Bool("json", false, "print JSON instead of a table")
	partitions := f.String("partition", "", "check only these partitions of the log, 0 to 31, as a sample, e.g. 0,5")
	watch := f.Duration("watch", 2*time.Second, "minimum time between the two reads that are compared for changes")
	idle := f.Duration("idle", 30*time.Second, "how long a session of the service may be idle in a transaction")
	if err := f.Parse(args); err != nil {
		return err
	}
	cfg := verify.Config{DatabaseURL: env("DATABASE_URL"), TopicPrefix: env("METERPLEX_TOPIC_PREFIX"), Watch: *watch, Idle: *idle,
		Now:      time.Now,
		Progress: func(text string) { fmt.Fprintln(stderr, text) }}
	var err error
	if cfg.Partitions, err = partitionsOf(*partitions); err != nil {
		return err
	}
	if brokers := env("KAFKA_BROKERS"); brokers == "" {
		cfg.NoTopics = "set KAFKA_BROKERS"
	} else if cfg.Kafka, err = kafka(brokers, env); err != nil {
		return err
	}
	var checks []verify.Check
	if url := env("METERPLEX_URL"); url != "" {
		if checks, err = verify.ServiceChecks(verify.NewHTTP(ctx, url, env("METERPLEX_KEY"))); err != nil {
			return err
		}
	}
	found, err := verify.Run(ctx, cfg)
	if err != nil {
		return err
	}
	checks = append(checks, found...)
	if err := show(checks, *asJSON, stdout); err != nil {
		return err
	}
	skipped, outcome := verify.Judge(checks, *all)
	if skipped > 0 {
		fmt.Fprintf(stderr, "%d of %d checks were skipped\n", skipped, len(checks))
	}
	return outcome
}

func partitionsOf(list string) (all []int16, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if list == "" {
			break
		}
		p, err := strconv.ParseUint(text, 10, 5)
		if err != nil {
			return nil, fmt.Errorf("--partition %q: expected 0 to 31", text)
		}
		all = append(all, int16(p))
	}
	return slices.Compact(all), nil
}

// kafka returns the options of the brokers' client.
func kafka(brokers string, env func(string) string) ([]kgo.Opt, error) {
	var secure *tls.Config
	if env("KAFKA_TLS_ENABLED") == "true" {
		secure = &tls.Config{MinVersion: tls.VersionTLS12}
		if cert := env("KAFKA_TLS_CERT"); cert != "" {
			pair, err := tls.LoadX509KeyPair(cert, env("KAFKA_TLS_KEY"))
			if err != nil {
				return nil, fmt.Errorf("read KAFKA_TLS_CERT and KAFKA_TLS_KEY: %w", err)
			}
			secure.Certificates = []tls.Certificate{pair}
		}
		if ca := env("KAFKA_TLS_CA"); ca != "" {
			pem, err := os.ReadFile(ca)
			if err != nil {
				return nil, fmt.Errorf("read KAFKA_TLS_CA: %w", err)
			}
			if secure.RootCAs = x509.NewCertPool(); !secure.RootCAs.AppendCertsFromPEM(pem) {
				return nil, errors.New("KAFKA_TLS_CA has no certificate in PEM form")
			}
		}
	}
	return verify.Brokers(strings.Split(brokers, ","), secure, env("KAFKA_SASL_MECHANISM"), env("KAFKA_SASL_USERNAME"),
		env("KAFKA_SASL_PASSWORD")), nil
}

// show prints a line for each check.
func show(checks []verify.Check, asJSON bool, to io.Writer) error {
	if asJSON {
		e := json.NewEncoder(to)
		e.SetIndent("", "  ")
		return e.Encode(checks)
	}
	table := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	for _, c := range checks {
		holds := "-"
		if c.Holds != nil {
			holds = strconv.FormatBool(*c.Holds)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.Name, holds, strings.Map(printable, c.Figures))
	}
	return table.Flush()
}

// printable replaces characters that would change the terminal.
func printable(r rune) rune {
	if !strconv.IsPrint(r) {
		return ';'
	}
	return r
}
