// Package doctor checks the surroundings of the service: clocks, logins, servers, topics and the state of the pipeline. Each check
// names its finding and the remedy. It only reads. The promises of the service itself are checked by package verify.
package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Config says where the service and its servers are. Checks without their settings are skipped.
type Config struct {
	DatabaseURL string      // of the login that serves
	MigrateURL  string      // of the login that migrates; empty: the same
	AllowUnsafe []string    // the dangers that are allowed: METERPLEX_ALLOW_UNSAFE
	Connections int         // that an instance opens to the database at most
	TooFew      error       // the reason why METERPLEX_DATABASE_CONNECTIONS does not suffice
	Kafka       *Kafka      // nil: PostgreSQL is the pipe, or no brokers are set
	NoKafka     error       // the reason why Kafka cannot be used
	ServiceURL  string      // where /readyz is
	ServiceTLS  *tls.Config // nil: the certificate of the service is verified
	// Certificates and Keys are the PEM files of the settings, by their names.
	Certificates, Keys map[string]string
	TraceRatio         float64 // 0: no traces; the environment describes the exporter
	Erasures           string  // directory of METERPLEX_ERASURES; "": none
	Now                func() time.Time
}

// Kafka and SASL configure the client of the brokers.
type (
	Kafka = kafka.Config
	SASL  = kafka.SASL
)

// State is the result of a check.
type State string

// The states of a check.
const (
	OK      State = "ok"
	Warning State = "warning" // a risk, or a problem that is near
	Failure State = "failure" // a promise or the operation is at stake
	Unknown State = "unknown" // the check could not look
	Skipped State = "skipped" // not part of this installation, or its setting is absent
)

// Finding is the result of one check: a line of the output.
type Finding struct {
	Area    string `json:"area"`
	Check   string `json:"check"`
	State   State  `json:"state"`
	Finding string `json:"finding"`
	Remedy  string `json:"remedy"` // the change to make; empty if the state is ok
}

// needs is the access without which a check is skipped.
type needs int

const (
	needsNothing needs = iota
	needsDatabase
	needsKafka
	needsService
)

// check is one entry of the list in checks.go.
type check struct {
	area, name string
	needs      needs
	remedy     string // if the state is not ok
	run        func(context.Context, *subject) (State, string, error)
}

// subject is the examined installation.
type subject struct {
	Config
	db    *pgx.Conn // as meterplex_worker, which reads the tables
	login *pgx.Conn // as the login itself, which may have pg_monitor
	admin *kafka.Admin
	http  *http.Client

	dangers   []postgres.Danger // found, once read
	dangerErr error
	noTables  error // the reason why db is nil
	noLogin   error // the reason why login is nil
}

// checkTime bounds one check.
const checkTime = 10 * time.Second

// Run runs all checks in the order of the list. Its error reports that it was stopped early.
func Run(ctx context.Context, cfg Config) ([]Finding, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = cfg.ServiceTLS
	s := &subject{Config: cfg, http: &http.Client{Timeout: checkTime, Transport: transport}}
	defer s.close()
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	var list []Finding
	for _, c := range checks() {
		list = append(list, s.examine(ctx, &c))
		if ctx.Err() != nil {
			return nil, fmt.Errorf("stopped: %w", ctx.Err())
		}
	}
	return list, nil
}

func (s *subject) examine(ctx context.Context, c *check) Finding {
	f := Finding{Area: c.area, Check: c.name, State: Skipped, Remedy: c.remedy}
	if missing := s.missing(c.needs); missing != "" {
		f.Finding, f.Remedy = "not checked", missing
		return f
	}
	if c.needs == needsKafka && s.NoKafka != nil {
		f.State, f.Finding = Unknown, s.NoKafka.Error()
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var err error
	if f.State, f.Finding, err = c.run(ctx, s); err != nil {
		f.State, f.Finding = Unknown, err.Error()
	}
	if f.State == OK || f.State == Skipped {
		f.Remedy = ""
	} else if pooler := (*postgres.PoolerRefused)(nil); c.needs == needsDatabase && errors.As(errors.Join(s.noLogin, s.noTables), &pooler) {
		f.Remedy = postgres.PoolerRemedy
	}
	return f
}

// missing returns the setting that a check needs and that is absent.
func (s *subject) missing(n needs) string {
	switch {
	case n == needsDatabase && s.DatabaseURL == "":
		return "set DATABASE_URL"
	case n == needsKafka && s.Kafka == nil:
		return "set KAFKA_BROKERS, if Kafka is the pipe"
	case n == needsService && s.ServiceURL == "":
		return "set METERPLEX_URL"
	}
	return ""
}

// connect opens the servers that the settings name. A server that does not answer is a finding, no error.
func (s *subject) connect(ctx context.Context) error {
	if s.DatabaseURL != "" {
		within, cancel := context.WithTimeout(ctx, checkTime)
		defer cancel()
		s.login, s.noLogin = session(within, s.DatabaseURL, "")
		if s.db, s.noTables = session(within, s.DatabaseURL, postgres.WorkerRole); s.noLogin == nil {
			s.dangers, s.dangerErr = postgres.FindDangers(within, s.DatabaseURL)
		}
	}
	if s.Kafka != nil && s.NoKafka == nil {
		admin, err := kafka.NewAdmin(*s.Kafka)
		if err != nil {
			return fmt.Errorf("the settings of Kafka: %w", err)
		}
		s.admin = admin
	}
	return nil
}

// session connects to the database, under a role if it is named.
func session(ctx context.Context, url, role string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errors.New("the database URL cannot be read")
	}
	cfg.RuntimeParams["application_name"] = "meterplex-doctor"
	cfg.RuntimeParams["default_transaction_read_only"] = "on"
	cfg.RuntimeParams["statement_timeout"] = "8s"
	if role != "" {
		cfg.RuntimeParams["role"] = role
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if pooler := postgres.RefusedByPooler(err); pooler != nil {
		return nil, pooler
	}
	if err != nil {
		return nil, fmt.Errorf("reaching the database: %w", err)
	}
	return conn, nil
}

func (s *subject) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, conn := range []*pgx.Conn{s.db, s.login} {
		if conn != nil {
			_ = conn.Close(ctx) // it only read
		}
	}
	if s.admin != nil {
		s.admin.Close()
	}
	s.http.CloseIdleConnections()
}

// tables returns the session that reads the tables.
func (s *subject) tables() (*pgx.Conn, error) { return s.db, s.noTables }

// server returns the session that reads the state of the server.
func (s *subject) server() (*pgx.Conn, error) { return s.login, s.noLogin }
