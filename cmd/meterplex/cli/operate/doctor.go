package operate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/doctor"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// errUndetermined ends a command of which a check could not look.
var errUndetermined = errors.New("a check is undetermined")

// DoctorCmd checks the surroundings of a service.
type DoctorCmd struct {
	Strict bool `help:"Exit code 1 for warnings, too."`
	Quiet  bool `help:"Print only findings with a remedy."`
	DoctorFlags
}

// DoctorFlags holds the settings of the examined installation.
type DoctorFlags struct {
	VerifyFlags
	DatabaseMigrateURL *string `name:"database-migrate-url" placeholder:"URL" setting:"DATABASE_MIGRATE_URL"`
	HTTPTLSCert        *string `name:"http-tls-cert" placeholder:"FILE" setting:"METERPLEX_HTTP_TLS_CERT"`
	HTTPTLSKey         *string `name:"http-tls-key" placeholder:"FILE" setting:"METERPLEX_HTTP_TLS_KEY"`
	TraceRatio         *string `name:"trace-ratio" placeholder:"RATIO" setting:"METERPLEX_TRACE_RATIO" help:"Part of the traces that are exported; 0: no check."`
	AllowUnsafe        *string `name:"allow-unsafe" placeholder:"WORD,…" setting:"METERPLEX_ALLOW_UNSAFE" help:"Allowed dangers, which are warnings."`
}

// Help returns the long help text.
func (DoctorCmd) Help() string {
	return `Checks clocks, logins, certificates, replication, tables, schema, topics and the pipeline, with the settings of the service.
Each line is a check, its finding and the remedy.

DATABASE_URL should be the service's login. Replication is seen with pg_monitor. doctor only reads, and repairs nothing. Run it beside
the service: the checks of the pipeline look at its present work. It asks the instance of this machine by its settings; METERPLEX_URL or
--server names another.

Exit code 0: no failure; 1: a failure (with --strict also a warning); 2: a check could not look. Checks whose settings are absent are
skipped. docs/reference/doctor-checks.md lists all checks.`
}

// Run prints each finding.
func (c *DoctorCmd) Run(a *app.App) error {
	cfg, _, err := a.Config(c.DoctorFlags)
	if err != nil {
		return err
	}
	options := doctor.Config{DatabaseURL: cfg.DatabaseURL, MigrateURL: cfg.DatabaseMigrateURL, AllowUnsafe: cfg.AllowUnsafe,
		ServiceURL: cfg.URL, TraceRatio: cfg.TraceRatio, Erasures: cfg.Erasures, Now: a.Now,
		Certificates: present(map[string]string{"METERPLEX_HTTP_TLS_CERT": cfg.HTTPTLSCert, "KAFKA_TLS_CA": cfg.Kafka.TLSCA,
			"KAFKA_TLS_CERT": cfg.Kafka.TLSCert}),
		Keys: present(map[string]string{"METERPLEX_HTTP_TLS_KEY": cfg.HTTPTLSKey, "KAFKA_TLS_KEY": cfg.Kafka.TLSKey})}
	if !cfg.Given("METERPLEX_URL") {
		if options.ServiceURL, err = urlHere(cfg); err != nil {
			return err
		}
		options.ServiceTLS = client.AnyCertificate()
	}
	options.Connections, options.TooFew = node.Connections(cfg)
	if cfg.TraceRatio > 0 {
		addCollectorFiles(a, options.Certificates, options.Keys)
	}
	if cfg.Pipe != config.PipePostgres && len(cfg.Kafka.Brokers) > 0 {
		logger := slog.New(slog.DiscardHandler)
		tls, err := cfg.Kafka.TLSConfig(logger)
		options.NoKafka = err
		options.Kafka = &doctor.Kafka{Brokers: cfg.Kafka.Brokers, TopicPrefix: cfg.TopicPrefix, TLS: tls, ClientID: "meterplex-doctor",
			Logger: logger,
			SASL:   doctor.SASL{Mechanism: cfg.Kafka.SASLMechanism, Username: cfg.Kafka.SASLUsername, Password: cfg.Kafka.SASLPassword}}
	}
	findings, err := doctor.Run(a.Ctx, options)
	if err != nil {
		return err
	}
	return c.print(a, findings)
}

// addCollectorFiles adds the files of the connection to the collector of traces.
func addCollectorFiles(a *app.App, certificates, keys map[string]string) {
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"} {
		for name, to := range map[string]map[string]string{"CERTIFICATE": certificates, "CLIENT_CERTIFICATE": certificates,
			"CLIENT_KEY": keys} {
			if file, _ := a.Env(prefix + name); file != "" {
				to[prefix+name] = file
			}
		}
	}
}

// present leaves out settings without a value.
func present(files map[string]string) map[string]string {
	for name, file := range files {
		if file == "" {
			delete(files, name)
		}
	}
	return files
}

func (c *DoctorCmd) print(a *app.App, findings []doctor.Finding) error {
	counts := map[doctor.State]int{}
	var why []string // checks are skipped
	rows := a.Rows("area", "check", "state", "finding", "remedy")
	for i := range findings {
		f := &findings[i]
		counts[f.State]++
		if f.State == doctor.Skipped {
			why = append(why, cmp.Or(f.Remedy, f.Finding))
		}
		if c.Quiet && f.State == doctor.OK || f.State == doctor.Skipped && (c.Quiet || a.Flags.Output == "table") {
			continue
		}
		f.Finding = output.Printable(f.Finding)
		raw, err := json.Marshal(f)
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
	a.Report("%d checks: %d ok, %d warnings, %d failures, %d unknown, %d skipped", len(findings), counts[doctor.OK], counts[doctor.Warning],
		counts[doctor.Failure], counts[doctor.Unknown], counts[doctor.Skipped])
	if len(why) > 0 {
		a.Report("Skipped: %s", counted(why))
	}
	switch {
	case counts[doctor.Failure] > 0 || c.Strict && counts[doctor.Warning] > 0:
		return app.ErrNo
	case counts[doctor.Unknown] > 0:
		return fmt.Errorf("%w: %d checks could not look", errUndetermined, counts[doctor.Unknown])
	case counts[doctor.OK]+counts[doctor.Warning] == 0:
		return errors.New("no check to run: set DATABASE_URL, KAFKA_BROKERS or METERPLEX_URL")
	}
	return nil
}
