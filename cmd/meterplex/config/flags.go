package config

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// Connection holds the settings of commands that call a running service.
type Connection struct {
	URL *string `name:"server" placeholder:"URL" setting:"METERPLEX_URL"`
	Key *string `name:"key" placeholder:"KEY" setting:"METERPLEX_KEY"`
}

// ServiceFlags holds the settings of commands that run the service themselves.
type ServiceFlags struct {
	HTTPAddr               *string `name:"http-addr" placeholder:"HOST:PORT" setting:"METERPLEX_HTTP_ADDR"`
	HTTPTLSCert            *string `name:"http-tls-cert" placeholder:"FILE" setting:"METERPLEX_HTTP_TLS_CERT"`
	HTTPTLSKey             *string `name:"http-tls-key" placeholder:"FILE" setting:"METERPLEX_HTTP_TLS_KEY"`
	HTTPIdleTime           *string `name:"http-idle-time" placeholder:"DURATION" setting:"METERPLEX_HTTP_IDLE_TIME"`
	HTTPAddressConnections *string `name:"http-address-connections" placeholder:"N" setting:"METERPLEX_HTTP_ADDRESS_CONNECTIONS"`
	AdminAddr              *string `name:"admin-addr" placeholder:"HOST:PORT" setting:"METERPLEX_ADMIN_ADDR"`

	DatabaseURL         *string `name:"database-url" placeholder:"URL" setting:"DATABASE_URL"`
	DatabaseMigrateURL  *string `name:"database-migrate-url" placeholder:"URL" setting:"DATABASE_MIGRATE_URL"`
	DatabaseReadURL     *string `name:"database-read-url" placeholder:"URL" setting:"DATABASE_READ_URL"`
	DatabaseConnections *string `name:"database-connections" placeholder:"N" setting:"METERPLEX_DATABASE_CONNECTIONS"`

	KafkaBrokers *string `name:"kafka-brokers" placeholder:"HOST:PORT,…" setting:"KAFKA_BROKERS"`
	KafkaAccess
	KafkaReplication *string `name:"kafka-replication" placeholder:"N" setting:"KAFKA_REPLICATION"`

	Pipe                 *string `name:"pipe" placeholder:"NAME" setting:"METERPLEX_PIPE"`
	DataDir              *string `name:"data-dir" placeholder:"DIR" setting:"METERPLEX_DATA_DIR"`
	BootstrapOperatorKey *string `name:"bootstrap-operator-key" placeholder:"KEY" setting:"METERPLEX_BOOTSTRAP_OPERATOR_KEY"`
	Roles                *string `name:"roles" placeholder:"ROLE,…" setting:"METERPLEX_ROLES"`
	TopicPrefix          *string `name:"topic-prefix" placeholder:"TEXT" setting:"METERPLEX_TOPIC_PREFIX"`
	Region               *string `name:"region" placeholder:"NAME" setting:"METERPLEX_REGION"`
	IngestAhead          *string `name:"ingest-ahead" placeholder:"DURATION" setting:"METERPLEX_INGEST_AHEAD"`
	IngestBehind         *string `name:"ingest-behind" placeholder:"DURATION" setting:"METERPLEX_INGEST_BEHIND"`
	RebuildChunk         *string `name:"rebuild-chunk" placeholder:"N" setting:"METERPLEX_REBUILD_CHUNK"`
	RebuildShare         *string `name:"rebuild-share" placeholder:"PERCENT" setting:"METERPLEX_REBUILD_SHARE"`
	RollbackKeep         *string `name:"rollback-keep" placeholder:"DURATION" setting:"METERPLEX_ROLLBACK_KEEP"`
	AnswerKeep           *string `name:"answer-keep" placeholder:"DURATION" setting:"METERPLEX_ANSWER_KEEP"`
	EndedKeep            *string `name:"ended-keep" placeholder:"DURATION" setting:"METERPLEX_ENDED_KEEP"`
	Erasures             *string `name:"erasures" placeholder:"DIR" setting:"METERPLEX_ERASURES"`
	WebhookAllow         *string `name:"webhook-allow" placeholder:"CIDR,…" setting:"METERPLEX_WEBHOOK_ALLOW"`
	StripeKey            *string `name:"stripe-key" placeholder:"SECRET" setting:"METERPLEX_STRIPE_KEY"`
	StripeURL            *string `name:"stripe-url" placeholder:"URL" setting:"METERPLEX_STRIPE_URL"`
	Console              *string `name:"console" placeholder:"SWITCH" setting:"METERPLEX_CONSOLE"`
	PortalFrames         *string `name:"portal-frames" placeholder:"ORIGIN,…" setting:"METERPLEX_PORTAL_FRAMES"`
	AllowUnsafe          *string `name:"allow-unsafe" placeholder:"WORD,…" setting:"METERPLEX_ALLOW_UNSAFE"`
	TraceRatio           *string `name:"trace-ratio" placeholder:"RATIO" setting:"METERPLEX_TRACE_RATIO"`
	LogLevel             *string `name:"log-level" placeholder:"LEVEL" setting:"METERPLEX_LOG_LEVEL"`
	LogFormat            *string `name:"log-format" placeholder:"FORMAT" setting:"METERPLEX_LOG_FORMAT"`
}

// KafkaAccess holds the security settings of every connection to the brokers.
type KafkaAccess struct {
	KafkaTLS           *string `name:"kafka-tls-enabled" placeholder:"BOOL" setting:"KAFKA_TLS_ENABLED"`
	KafkaTLSCA         *string `name:"kafka-tls-ca" placeholder:"FILE" setting:"KAFKA_TLS_CA"`
	KafkaTLSCert       *string `name:"kafka-tls-cert" placeholder:"FILE" setting:"KAFKA_TLS_CERT"`
	KafkaTLSKey        *string `name:"kafka-tls-key" placeholder:"FILE" setting:"KAFKA_TLS_KEY"`
	KafkaTLSServerName *string `name:"kafka-tls-server-name" placeholder:"NAME" setting:"KAFKA_TLS_SERVER_NAME"`
	KafkaSASLMechanism *string `name:"kafka-sasl-mechanism" placeholder:"NAME" setting:"KAFKA_SASL_MECHANISM"`
	KafkaSASLUsername  *string `name:"kafka-sasl-username" placeholder:"NAME" setting:"KAFKA_SASL_USERNAME"`
	KafkaSASLPassword  *string `name:"kafka-sasl-password" placeholder:"SECRET" setting:"KAFKA_SASL_PASSWORD"`
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

// DescribeFlag returns the help of a flag. That of a setting has its variable and its default.
func DescribeFlag(v *kong.Value) string {
	name := v.Tag.Get("setting")
	for _, s := range settings() {
		if s.Name != name {
			continue
		}
		help := strings.TrimSuffix(cmp.Or(v.Help, s.use), ".") + " (" + name
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
