// Package config holds the settings of the service and of its client: their names, flags,
// defaults and allowed values. It finds the value of each setting in flags, environment and file, and
// opens no connection.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Pipes that carry events.
const (
	PipeKafka    = "kafka"
	PipePostgres = "postgres"
)

// Config holds the service's settings. An empty DatabaseURL means an embedded
// PostgreSQL; no brokers mean an embedded Kafka or the PostgreSQL pipe.
type Config struct {
	// Resolved are all settings with their origin, for those who show them. Their values are masked by Shown.
	Resolved    []Resolved
	HTTPAddr    string
	HTTPTLSCert string // file with the certificate chain, "" for plain HTTP
	HTTPTLSKey  string
	HTTPIdle    time.Duration // of a client's connection without a request
	HTTPOfOne   int64         // connections of one address; 0: no bound
	AdminAddr   string        // of health, metrics and profiles; "" leaves health and metrics at HTTPAddr

	DatabaseURL        string
	DatabaseMigrateURL string // the same database as its owner; "" means DatabaseURL
	DatabaseReadURL    string // a replica; "" means DatabaseURL

	// DatabaseConnections bounds the connections to DatabaseURL; 0: as many as the roles can use
	DatabaseConnections int64

	Kafka Kafka
	Pipe  string // one of the pipes above, or "" to choose automatically

	DataDir              string
	BootstrapOperatorKey string
	Roles                []string // default: all roles
	TopicPrefix          string
	Region               string
	IngestAhead          time.Duration
	IngestBehind         time.Duration
	RebuildChunk         int64
	RebuildShare         int64
	RollbackKeep         time.Duration
	AnswerKeep           time.Duration  // of answers to requests with an Idempotency-Key
	EndedKeep            time.Duration  // of ended replays, and of the units of rebuilds that are dropped
	StripeKey            string         // secret key of a Stripe account; "": no pushes to Stripe
	StripeURL            string         // of Stripe's API
	Erasures             string         // directory outside the database that keeps erasures of personal data; "": none does
	WebhookAllow         []netip.Prefix // private networks that webhooks may be sent to, also over http
	Console              bool           // whether instances with the role api serve the console
	PortalFrames         []string       // origins that may embed the page of a link for a tenant's people
	AllowUnsafe          []string       // names of unsafe database settings that are tolerated

	TraceRatio float64 // of the traces that are sampled; 0: none, and nothing is exported

	LogLevel  slog.Level
	LogFormat string // text, json

	URL string // of the service, for client commands
	Key string // API key, for client commands
}

// Kafka holds the settings of the connection to the brokers.
type Kafka struct {
	Brokers       []string // host:port; empty means embedded
	TLS           bool
	TLSCA         string // file; "" means the system's roots
	TLSCert       string // file with the client's certificate
	TLSKey        string
	TLSServerName string

	SASLMechanism string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, or "" without authentication
	SASLUsername  string
	SASLPassword  string

	Replication int16 // copies of each record; 0 means chosen by the number of brokers
}

// Client returns the settings by which a command reaches this service and its servers, by name. They hold secrets.
func (c *Config) Client() map[string]string {
	k := &c.Kafka
	all := map[string]string{"METERPLEX_URL": c.URL, "METERPLEX_KEY": c.Key, "DATABASE_URL": c.DatabaseURL,
		"METERPLEX_TOPIC_PREFIX": c.TopicPrefix, "METERPLEX_PIPE": PipePostgres,
		"METERPLEX_ERASURES": c.Erasures}
	if len(k.Brokers) > 0 && c.Pipe != PipePostgres {
		maps.Copy(all, map[string]string{"METERPLEX_PIPE": PipeKafka, "KAFKA_BROKERS": strings.Join(k.Brokers, ","),
			"KAFKA_TLS_ENABLED": strconv.FormatBool(k.TLS), "KAFKA_TLS_CA": k.TLSCA,
			"KAFKA_TLS_CERT": k.TLSCert, "KAFKA_TLS_KEY": k.TLSKey, "KAFKA_TLS_SERVER_NAME": k.TLSServerName,
			"KAFKA_SASL_MECHANISM": k.SASLMechanism, "KAFKA_SASL_USERNAME": k.SASLUsername, "KAFKA_SASL_PASSWORD": k.SASLPassword})
	}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

// Resolved is one setting with its value and the value's source.
type Resolved struct {
	setting
	value  string
	Source string // flag --NAME, environment, file PATH:LINE or default
}

// Given reports whether a setting has another source than its default.
func (c *Config) Given(name string) bool {
	return slices.ContainsFunc(c.Resolved, func(r Resolved) bool { return r.Name == name && r.Source != "default" })
}

// given is a value and its source.
type given struct{ value, source string }

// Lookup is os.LookupEnv, or a map in tests.
type Lookup func(name string) (string, bool)

// resolve reads each setting from the flags, else the environment, else the
// file, else its default. An empty value in the environment or the file counts
// as not given. All invalid settings are reported together, each with its source.
// An invalid combination counts only for a command that takes one of its settings.
func resolve(flags map[string]given, env Lookup, file map[string]given, takes map[string]bool) (Config, []Resolved, error) {
	var (
		cfg  Config
		all  []Resolved
		errs []error
	)
	for _, s := range settings() {
		g := given{s.standard, "default"}
		if v, ok := file[s.Name]; ok && v.value != "" {
			g = v
		}
		if v, ok := env(s.Name); ok && v != "" {
			g = given{v, "environment"}
		}
		if v, ok := flags[s.Name]; ok {
			g = v
		}
		if err := s.set(&cfg, g.value); err != nil {
			errs = append(errs, fmt.Errorf("%s (from %s): %w", s.Name, g.source, err))
		}
		all = append(all, Resolved{s, g.value, g.source})
	}
	for _, c := range cfg.contradictions() {
		if slices.ContainsFunc(c.of, func(name string) bool { return takes[name] }) {
			errs = append(errs, errors.New(c.text))
		}
	}
	return cfg, all, errors.Join(errs...)
}

// contradiction is an invalid combination of settings.
type contradiction struct {
	text string
	of   []string // the settings
}

func (c *Config) contradictions() (found []contradiction) {
	add := func(text string, of ...string) { found = append(found, contradiction{text, of}) }
	if (c.HTTPTLSCert == "") != (c.HTTPTLSKey == "") {
		add("METERPLEX_HTTP_TLS_CERT and METERPLEX_HTTP_TLS_KEY go together: give both or neither", "METERPLEX_HTTP_TLS_CERT")
	}
	if slices.Contains(c.Roles, "api") && sameAddress(c.AdminAddr, c.HTTPAddr) {
		add("METERPLEX_ADMIN_ADDR and METERPLEX_HTTP_ADDR are the same: give the admin address another port, or leave it out",
			"METERPLEX_ADMIN_ADDR")
	}
	k := &c.Kafka
	if (k.TLSCert == "") != (k.TLSKey == "") {
		add("KAFKA_TLS_CERT and KAFKA_TLS_KEY go together: give both or neither", "KAFKA_TLS_CERT")
	}
	if !k.TLS && (k.TLSCA != "" || k.TLSCert != "" || k.TLSServerName != "") {
		add("KAFKA_TLS_* is given but KAFKA_TLS_ENABLED is not true", "KAFKA_TLS_ENABLED")
	}
	if (k.SASLMechanism == "") != (k.SASLUsername == "") || (k.SASLUsername == "") != (k.SASLPassword == "") {
		add("KAFKA_SASL_MECHANISM, KAFKA_SASL_USERNAME and KAFKA_SASL_PASSWORD go together: set all or leave all out",
			"KAFKA_SASL_MECHANISM")
	}
	if u, err := url.Parse(c.StripeURL); err == nil && u.Scheme == "http" && strings.Contains(c.StripeKey, "k_live_") {
		add("METERPLEX_STRIPE_KEY is a live key and METERPLEX_STRIPE_URL is not https: a live key is sent by https only",
			"METERPLEX_STRIPE_KEY")
	}
	if c.DatabaseURL == "" && (c.DatabaseMigrateURL != "" || c.DatabaseReadURL != "") {
		add("DATABASE_MIGRATE_URL and DATABASE_READ_URL need DATABASE_URL: without it an embedded PostgreSQL is used",
			"DATABASE_MIGRATE_URL", "DATABASE_READ_URL")
	}
	return found
}

// Load resolves the settings from groups of flags, the environment and a file. If file is
// empty, METERPLEX_CONFIG names the file.
func Load(file string, env Lookup, groups ...any) (Config, []Resolved, error) {
	if file == "" {
		file, _ = env("METERPLEX_CONFIG")
	}
	var values map[string]given
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return Config{}, nil, fmt.Errorf("read the settings file: %w", err)
		}
		if values, err = parseFile(file, string(text)); err != nil {
			return Config{}, nil, err
		}
	}
	c, all, err := resolve(givenFlags(groups...), env, values, takenBy(groups...))
	c.Resolved = all
	return c, all, err
}

// Unknown returns the variables, of NAME=VALUE, that look like settings but are unknown: a
// misspelt one would silently mean the default, such as an embedded database instead of the real one.
func Unknown(environment []string) (unknown []string) {
	known := map[string]bool{"METERPLEX_CONFIG": true, "METERPLEX_CACHE_DIR": true}
	for _, s := range settings() {
		known[s.Name] = true
	}
	for _, v := range environment {
		name, value, _ := strings.Cut(v, "=")
		if value != "" && strings.HasPrefix(name, "METERPLEX_") && !strings.HasPrefix(name, "METERPLEX_TEST_") && !known[name] {
			unknown = append(unknown, name)
		}
	}
	return unknown
}
