package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// Connection holds the settings of commands that call a running service.
type Connection struct {
	URL *string `name:"server" placeholder:"URL" setting:"METERPLEX_URL" help:"Where the service is."`
	Key *string `name:"key" placeholder:"KEY" setting:"METERPLEX_KEY" help:"API key or operator key. Other users of this machine can see flags: prefer the variable."`
}

// ServiceFlags holds the settings of commands that run the service themselves.
type ServiceFlags struct {
	HTTPAddr               *string `name:"http-addr" placeholder:"HOST:PORT" setting:"METERPLEX_HTTP_ADDR" help:"Address to listen on."`
	HTTPTLSCert            *string `name:"http-tls-cert" placeholder:"FILE" setting:"METERPLEX_HTTP_TLS_CERT" help:"Certificate chain; with the key, HTTPS is served."`
	HTTPTLSKey             *string `name:"http-tls-key" placeholder:"FILE" setting:"METERPLEX_HTTP_TLS_KEY" help:"Private key of the certificate."`
	HTTPIdleTime           *string `name:"http-idle-time" placeholder:"DURATION" setting:"METERPLEX_HTTP_IDLE_TIME" help:"How long a connection without a request stays open: longer than a load balancer keeps it."`
	HTTPAddressConnections *string `name:"http-address-connections" placeholder:"N" setting:"METERPLEX_HTTP_ADDRESS_CONNECTIONS" help:"Maximum number of open connections of one client address (IPv6: of one /64), for an instance with a public address; 0: no bound, as behind a proxy."`
	AdminAddr              *string `name:"admin-addr" placeholder:"HOST:PORT" setting:"METERPLEX_ADMIN_ADDR" help:"Address of its own for /livez, /readyz, /metrics and /debug/pprof, which need no key: only operators should reach it. They are not served at the other address then."`

	DatabaseURL         *string `name:"database-url" placeholder:"URL" setting:"DATABASE_URL" help:"PostgreSQL to use; without one, an embedded PostgreSQL is started."`
	DatabaseMigrateURL  *string `name:"database-migrate-url" placeholder:"URL" setting:"DATABASE_MIGRATE_URL" help:"The same database as its owner, for migrations."`
	DatabaseReadURL     *string `name:"database-read-url" placeholder:"URL" setting:"DATABASE_READ_URL" help:"A replica to read from."`
	DatabaseConnections *string `name:"database-connections" placeholder:"N" setting:"METERPLEX_DATABASE_CONNECTIONS" help:"Maximum number of connections to the database (not to the replica); 0: as many as the roles can use, 36 for all with Kafka and 50 without."`

	KafkaBrokers *string `name:"kafka-brokers" placeholder:"HOST:PORT,…" setting:"KAFKA_BROKERS" help:"Brokers to use. Without any, PostgreSQL is the pipe; without a database URL, too, an embedded Kafka is, if Java 17 or later and Maven are found."`
	KafkaAccess
	KafkaReplication *string `name:"kafka-replication" placeholder:"N" setting:"KAFKA_REPLICATION" help:"Copies of each record in topics that are made; not given: three if there are three brokers, else one."`

	Pipe                 *string `name:"pipe" placeholder:"NAME" setting:"METERPLEX_PIPE" help:"The message pipe: kafka or postgres. Not given: kafka with brokers, postgres with a database URL alone, else an embedded Kafka if one can start."`
	DataDir              *string `name:"data-dir" placeholder:"DIR" setting:"METERPLEX_DATA_DIR" help:"Where embedded servers and imports keep their files."`
	BootstrapOperatorKey *string `name:"bootstrap-operator-key" placeholder:"KEY" setting:"METERPLEX_BOOTSTRAP_OPERATOR_KEY" help:"Operator key with all scopes that is accepted from the start; prefer the variable."`
	Roles                *string `name:"roles" placeholder:"ROLE,…" setting:"METERPLEX_ROLES" help:"The roles of this instance."`
	TopicPrefix          *string `name:"topic-prefix" placeholder:"TEXT" setting:"METERPLEX_TOPIC_PREFIX" help:"First characters of each topic and consumer group, for several installations on one Kafka."`
	Region               *string `name:"region" placeholder:"NAME" setting:"METERPLEX_REGION" help:"Region of this deployment: the data residency of tenants that are created without one, and of events of no tenant. All instances have the same."`
	IngestAhead          *string `name:"ingest-ahead" placeholder:"DURATION" setting:"METERPLEX_INGEST_AHEAD" help:"Maximum time of a usage event ahead of the clock."`
	IngestBehind         *string `name:"ingest-behind" placeholder:"DURATION" setting:"METERPLEX_INGEST_BEHIND" help:"Maximum age of a usage event."`
	RebuildChunk         *string `name:"rebuild-chunk" placeholder:"N" setting:"METERPLEX_REBUILD_CHUNK" help:"How many positions of the log one transaction of a rebuild folds."`
	RebuildShare         *string `name:"rebuild-share" placeholder:"PERCENT" setting:"METERPLEX_REBUILD_SHARE" help:"How much of the time each worker of a rebuild works, and the first fold of usage series; it rests otherwise, for the requests beside it."`
	RollbackKeep         *string `name:"rollback-keep" placeholder:"DURATION" setting:"METERPLEX_ROLLBACK_KEEP" help:"Time for which the previous generation is kept for a rollback."`
	AnswerKeep           *string `name:"answer-keep" placeholder:"DURATION" setting:"METERPLEX_ANSWER_KEEP" help:"How long the answer to a request with an Idempotency-Key is kept, a day at least. A later repeat is refused; it never takes effect again."`
	EndedKeep            *string `name:"ended-keep" placeholder:"DURATION" setting:"METERPLEX_ENDED_KEEP" help:"How long ended replays are listed, and the progress of dropped rebuilds by partition is kept, a day at least. The log keeps their events."`
	Erasures             *string `name:"erasures" placeholder:"DIR" setting:"METERPLEX_ERASURES" help:"A directory outside the database, for all instances, that lists erased tenants. Not given: a restored backup has the data that were erased since."`
	WebhookAllow         *string `name:"webhook-allow" placeholder:"CIDR,…" setting:"METERPLEX_WEBHOOK_ALLOW" help:"Private networks that webhooks of operators may be sent to, also over http."`
	StripeKey            *string `name:"stripe-key" placeholder:"SECRET" setting:"METERPLEX_STRIPE_KEY" help:"Secret or restricted key of Stripe, for instances with the role biller; prefer the variable. Not given: amounts that are due are stored, and wait."`
	StripeURL            *string `name:"stripe-url" placeholder:"URL" setting:"METERPLEX_STRIPE_URL" help:"Where Stripe's API is."`
	Console              *string `name:"console" placeholder:"SWITCH" setting:"METERPLEX_CONSOLE" help:"Whether the role api serves the console at /console: on or off."`
	PortalFrames         *string `name:"portal-frames" placeholder:"ORIGIN,…" setting:"METERPLEX_PORTAL_FRAMES" help:"Sites that may embed the page of a link for a tenant's people, e.g. https://app.example.com."`
	AllowUnsafe          *string `name:"allow-unsafe" placeholder:"WORD,…" setting:"METERPLEX_ALLOW_UNSAFE" help:"Start although the database is unsafe in these respects; the refusal names them."`
	TraceRatio           *string `name:"trace-ratio" placeholder:"RATIO" setting:"METERPLEX_TRACE_RATIO" help:"Export the spans of this part of the traces, from 0 (none) to 1 (all), to the collector of OTEL_EXPORTER_OTLP_ENDPOINT."`
	LogLevel             *string `name:"log-level" placeholder:"LEVEL" setting:"METERPLEX_LOG_LEVEL" help:"debug, info, warn or error."`
	LogFormat            *string `name:"log-format" placeholder:"FORMAT" setting:"METERPLEX_LOG_FORMAT" help:"text or json."`
}

// KafkaAccess holds the security settings of every connection to the brokers.
type KafkaAccess struct {
	KafkaTLS           *string `name:"kafka-tls-enabled" placeholder:"BOOL" setting:"KAFKA_TLS_ENABLED" help:"Use TLS to the brokers (true, false)."`
	KafkaTLSCA         *string `name:"kafka-tls-ca" placeholder:"FILE" setting:"KAFKA_TLS_CA" help:"Certificates that the brokers' are checked against."`
	KafkaTLSCert       *string `name:"kafka-tls-cert" placeholder:"FILE" setting:"KAFKA_TLS_CERT" help:"Client certificate."`
	KafkaTLSKey        *string `name:"kafka-tls-key" placeholder:"FILE" setting:"KAFKA_TLS_KEY" help:"Private key of the client certificate."`
	KafkaTLSServerName *string `name:"kafka-tls-server-name" placeholder:"NAME" setting:"KAFKA_TLS_SERVER_NAME" help:"Name expected in the brokers' certificates."`
	KafkaSASLMechanism *string `name:"kafka-sasl-mechanism" placeholder:"NAME" setting:"KAFKA_SASL_MECHANISM" help:"PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."`
	KafkaSASLUsername  *string `name:"kafka-sasl-username" placeholder:"NAME" setting:"KAFKA_SASL_USERNAME" help:"User at the brokers."`
	KafkaSASLPassword  *string `name:"kafka-sasl-password" placeholder:"SECRET" setting:"KAFKA_SASL_PASSWORD" help:"Password at the brokers; prefer the variable."`
}

// DataDirFlag is the data directory for commands that need no other setting of
// the service.
type DataDirFlag struct {
	DataDir *string `name:"data-dir" placeholder:"DIR" setting:"METERPLEX_DATA_DIR" help:"Where imports keep their state."`
}

// givenFlags returns the given flags by the name of their setting.
func givenFlags(groups ...any) map[string]given {
	flags := map[string]given{}
	for _, group := range groups {
		v := reflect.ValueOf(group)
		for _, f := range reflect.VisibleFields(v.Type()) {
			if p, ok := v.FieldByIndex(f.Index).Interface().(*string); ok && p != nil {
				flags[f.Tag.Get("setting")] = given{*p, "flag --" + f.Tag.Get("name")}
			}
		}
	}
	return flags
}

// DescribeFlag adds the variable and the default to a setting's help.
func DescribeFlag(v *kong.Value) string {
	name := v.Tag.Get("setting")
	for _, s := range settings() {
		if s.Name != name {
			continue
		}
		help := strings.TrimSuffix(v.Help, ".") + " (" + name
		if s.standard != "" {
			help += ", default " + s.standard
		}
		return help + ")."
	}
	return kong.DefaultHelpValueFormatter(v)
}

// takenBy returns the names of the settings for which groups have a flag.
func takenBy(groups ...any) map[string]bool {
	taken := map[string]bool{}
	for _, group := range groups {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(group)) {
			if name := f.Tag.Get("setting"); name != "" {
				taken[name] = true
			}
		}
	}
	return taken
}

// parseFile reads KEY=VALUE lines. Empty lines and lines that begin with # are
// skipped; a value may be in one pair of quotes. An unknown or repeated name is
// an error: a misspelt setting must not be ignored.
func parseFile(path, text string) (map[string]given, error) {
	known := map[string]bool{}
	for _, s := range settings() {
		known[s.Name] = true
	}
	file := map[string]given{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := fmt.Sprintf("%s:%d", path, i+1)
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if _, twice := file[name]; !ok || !known[name] || twice {
			return nil, fmt.Errorf("%s: each line is KEY=VALUE with a setting that config print lists, once", at)
		}
		file[name] = given{unquote(strings.TrimSpace(value)), "file " + at}
	}
	return file, nil
}

func unquote(s string) string {
	if n := len(s); n >= 2 && s[0] == s[n-1] && (s[0] == '"' || s[0] == '\'') {
		return s[1 : n-1]
	}
	return s
}
