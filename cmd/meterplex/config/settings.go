package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
)

// setting is one configuration name. Errors of set never repeat the value: it may
// be a secret.
type setting struct {
	Name     string
	standard string
	mask     func(string) string // nil if the value may be shown
	set      func(c *Config, value string) error
	use      string // help of its flag, unless a command has another
}

// settings lists all settings, in the order of config print.
func settings() []setting {
	return []setting{
		{"METERPLEX_HTTP_ADDR", "127.0.0.1:8080", nil, func(c *Config, v string) error { return setAddr(&c.HTTPAddr, v) },
			"Address to listen on."},
		{"METERPLEX_HTTP_TLS_CERT", "", nil, func(c *Config, v string) error { return setText(&c.HTTPTLSCert, v) },
			"Certificate chain; with the key, HTTPS is served."},
		{"METERPLEX_HTTP_TLS_KEY", "", nil, func(c *Config, v string) error { return setText(&c.HTTPTLSKey, v) },
			"Private key of the certificate."},
		{"METERPLEX_HTTP_IDLE_TIME", "620s", nil, func(c *Config, v string) error { return setDuration(&c.HTTPIdle, v) },
			"How long a connection without a request stays open: longer than a load balancer keeps it."},
		{"METERPLEX_HTTP_ADDRESS_CONNECTIONS", "0", nil, func(c *Config, v string) error { return setCountOrNone(&c.HTTPOfOne, v) },
			"Maximum number of open connections of one client address (IPv6: of one /64), for an instance with a public address; 0: " +
				"no bound, e.g. if a proxy forwards all requests."},
		{"METERPLEX_ADMIN_ADDR", "", nil, func(c *Config, v string) error { return setOptionalAddr(&c.AdminAddr, v) },
			"Address of its own for /livez, /readyz, /metrics and /debug/pprof, which need no key: only operators should reach it. " +
				"They are not served at the other address then."},
		{"DATABASE_URL", "", MaskURL, func(c *Config, v string) error { return setDatabase(&c.DatabaseURL, v) },
			"PostgreSQL to use; without one, an embedded PostgreSQL is started."},
		{"DATABASE_MIGRATE_URL", "", MaskURL, func(c *Config, v string) error { return setDatabase(&c.DatabaseMigrateURL, v) },
			"The same database as its owner, for migrations."},
		{"DATABASE_READ_URL", "", MaskURL, func(c *Config, v string) error { return setDatabase(&c.DatabaseReadURL, v) },
			"A replica to read from."},
		{"METERPLEX_DATABASE_CONNECTIONS", "0", nil, func(c *Config, v string) error { return setCountOrNone(&c.DatabaseConnections, v) },
			"Maximum number of connections to the database (not to the replica); 0: the number that the roles can use, 36 for all with " +
				"Kafka and 50 without."},
		{"KAFKA_BROKERS", "", nil, func(c *Config, v string) error { return setBrokers(&c.Kafka.Brokers, v) },
			"Brokers to use. Without any, PostgreSQL is the pipe; without a database URL, too, an embedded Kafka is, if Java 17 or " +
				"later and Maven are found."},
		{"KAFKA_TLS_ENABLED", "false", nil, func(c *Config, v string) error { return setBool(&c.Kafka.TLS, v) },
			"Use TLS to the brokers (true, false)."},
		{"KAFKA_TLS_CA", "", nil, func(c *Config, v string) error { return setText(&c.Kafka.TLSCA, v) },
			"Certificates that the brokers' are checked against."},
		{"KAFKA_TLS_CERT", "", nil, func(c *Config, v string) error { return setText(&c.Kafka.TLSCert, v) },
			"Client certificate."},
		{"KAFKA_TLS_KEY", "", nil, func(c *Config, v string) error { return setText(&c.Kafka.TLSKey, v) },
			"Private key of the client certificate."},
		{"KAFKA_TLS_SERVER_NAME", "", nil, func(c *Config, v string) error { return setText(&c.Kafka.TLSServerName, v) },
			"Name expected in the brokers' certificates."},
		{"KAFKA_SASL_MECHANISM", "", nil, func(c *Config, v string) error {
			return setWord(&c.Kafka.SASLMechanism, v, "", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
		},
			"PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."},
		{"KAFKA_SASL_USERNAME", "", nil, func(c *Config, v string) error { return setText(&c.Kafka.SASLUsername, v) },
			"User at the brokers."},
		{"KAFKA_SASL_PASSWORD", "", maskAll, func(c *Config, v string) error { return setText(&c.Kafka.SASLPassword, v) },
			"Password at the brokers; prefer the variable."},
		{"KAFKA_REPLICATION", "", nil, func(c *Config, v string) error { return setCopies(&c.Kafka.Replication, v) },
			"Copies of each record in topics that are made; not given: three if there are three brokers, else one."},
		{"METERPLEX_PIPE", "", nil, func(c *Config, v string) error { return setWord(&c.Pipe, v, "", PipeKafka, PipePostgres) },
			"The message pipe: kafka or postgres. Not given: kafka with brokers, postgres with a database URL alone, else an " +
				"embedded Kafka if one can start."},
		{"METERPLEX_DATA_DIR", "./.meterplex", nil, func(c *Config, v string) error { return setText(&c.DataDir, v) },
			"Where embedded servers and imports keep their files."},
		{"METERPLEX_BOOTSTRAP_OPERATOR_KEY", "", maskAll, func(c *Config, v string) error {
			return setPattern(&c.BootstrapOperatorKey, v, bootstrapKey, "must be mp_op_ and then at least 32 letters, digits, - or _")
		},
			"Operator key with all scopes that is accepted from the start; prefer the variable."},
		{"METERPLEX_ROLES", "all", nil, func(c *Config, v string) error { return setRoles(&c.Roles, v) },
			"The roles of this instance."},
		{"METERPLEX_TOPIC_PREFIX", "", nil, func(c *Config, v string) error {
			return setPattern(&c.TopicPrefix, v, topicPrefix, "may hold up to 100 letters, digits, dots, - and _")
		},
			"First characters of each topic and consumer group, for several installations on one Kafka."},
		{"METERPLEX_REGION", events.ResidencyUnspecified, nil, func(c *Config, v string) error { return setRegion(&c.Region, v) },
			"Region of this deployment: the data residency of tenants that are created without one, and of events of no tenant. All " +
				"instances have the same."},
		{"METERPLEX_INGEST_AHEAD", "5m", nil, func(c *Config, v string) error { return setDuration(&c.IngestAhead, v) },
			"Maximum time of a usage event ahead of the clock."},
		{"METERPLEX_INGEST_BEHIND", "168h", nil, func(c *Config, v string) error { return setDuration(&c.IngestBehind, v) },
			"Maximum age of a usage event."},
		{"METERPLEX_REBUILD_CHUNK", "100000", nil, func(c *Config, v string) error { return setCount(&c.RebuildChunk, v) },
			"How many positions of the log one transaction of a rebuild adds up."},
		{"METERPLEX_REBUILD_SHARE", "40", nil, func(c *Config, v string) error { return setPercent(&c.RebuildShare, v) },
			"Percentage of the time that each worker of a rebuild works, and the first computation of usage series; it rests " +
				"otherwise, for the requests beside it."},
		{"METERPLEX_ROLLBACK_KEEP", "24h", nil, func(c *Config, v string) error { return setDuration(&c.RollbackKeep, v) },
			"Time for which the previous figures are kept for a rollback."},
		{"METERPLEX_ANSWER_KEEP", "720h", nil, func(c *Config, v string) error { return setDays(&c.AnswerKeep, v) },
			"How long the answer to a request with an Idempotency-Key is kept, a day at least. A later repeat is refused; it never " +
				"takes effect again."},
		{"METERPLEX_ENDED_KEEP", "2160h", nil, func(c *Config, v string) error { return setDays(&c.EndedKeep, v) },
			"How long ended replays are listed, and the progress of dropped rebuilds by partition is kept, a day at least. The log " +
				"keeps their events."},
		{"METERPLEX_ERASURES", "", nil, func(c *Config, v string) error { return setText(&c.Erasures, v) },
			"A directory outside the database, for all instances, that lists erased tenants. Not given: a restored backup has the " +
				"data that were erased since."},
		{"METERPLEX_WEBHOOK_ALLOW", "", nil, func(c *Config, v string) error { return setNetworks(&c.WebhookAllow, v) },
			"Private networks that webhooks of operators may be sent to, also over http."},
		{"METERPLEX_STRIPE_KEY", "", maskAll, func(c *Config, v string) error {
			return setPattern(&c.StripeKey, v, stripeKey,
				"must begin with sk_test_, sk_live_, rk_test_ or rk_live_ and hold letters and digits after it")
		},
			"Secret or restricted key of Stripe, for instances with the role biller; prefer the variable. Not given: amounts that " +
				"are due are stored, and wait."},
		{"METERPLEX_STRIPE_URL", "https://api.stripe.com", MaskURL, func(c *Config, v string) error { return setURL(&c.StripeURL, v) },
			"Where Stripe's API is."},
		{"METERPLEX_CONSOLE", "on", nil, func(c *Config, v string) error { return setSwitch(&c.Console, v) },
			"Whether the role api serves the console at /console: on or off."},
		{"METERPLEX_PORTAL_FRAMES", "", nil, func(c *Config, v string) error { return setOrigins(&c.PortalFrames, v) },
			"Sites that may embed the page of a link for a tenant's people, e.g. https://app.example.com."},
		{"METERPLEX_ALLOW_UNSAFE", "", nil, func(c *Config, v string) error { return setUnsafe(&c.AllowUnsafe, v) },
			"Start although the database is unsafe in these respects; the refusal names them."},
		{"METERPLEX_TRACE_RATIO", "0", nil, func(c *Config, v string) error { return setRatio(&c.TraceRatio, v) },
			"Export the spans of this part of the traces, from 0 (none) to 1 (all), to the collector of OTEL_EXPORTER_OTLP_ENDPOINT."},
		{"METERPLEX_LOG_LEVEL", "info", nil, func(c *Config, v string) error { return setLevel(&c.LogLevel, v) },
			"debug, info, warn or error."},
		{"METERPLEX_LOG_FORMAT", "text", nil, func(c *Config, v string) error { return setWord(&c.LogFormat, v, "text", "json") },
			"text or json."},
		{"METERPLEX_URL", "http://127.0.0.1:8080", MaskURL, func(c *Config, v string) error { return setURL(&c.URL, v) },
			"Where the service is."},
		{"METERPLEX_KEY", "", maskAll, func(c *Config, v string) error {
			return setPattern(&c.Key, v, keyForm, "must begin with mp_live_, mp_test_ or mp_op_ and hold no spaces")
		},
			"API key or operator key. Other users of this machine can see flags: prefer the variable."},
	}
}

var (
	bootstrapKey = regexp.MustCompile(`^mp_op_[A-Za-z0-9_-]{32,}$`)
	keyForm      = regexp.MustCompile(`^mp_(live|test|op)_[A-Za-z0-9_-]+$`)
	stripeKey    = regexp.MustCompile(`^[rs]k_(test|live)_[A-Za-z0-9_]+$`)
	ratioForm    = regexp.MustCompile(`^[0-9]{1,20}(\.[0-9]{1,20})?$`)
	originForm   = regexp.MustCompile(`^https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$`)
	topicPrefix  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
)

// IsKey reports whether text has the form of an API key.
func IsKey(text string) bool { return keyForm.MatchString(text) }

// AllRoles lists the roles of an instance; by default it has all of them.
func AllRoles() []string {
	return []string{"api", "relay", "validator", "aggregator", "deadletter", "commands", "projector", "sagas", "notifier", "biller"}
}

func setText(to *string, v string) error {
	*to = v
	return nil
}

func setWord(to *string, v string, words ...string) error {
	if !slices.Contains(words, v) {
		return fmt.Errorf("must be one of %s", strings.Trim(strings.Join(words, ", "), ", "))
	}
	*to = v
	return nil
}

func setPattern(to *string, v string, form *regexp.Regexp, rule string) error {
	if v != "" && !form.MatchString(v) {
		return errors.New(rule)
	}
	*to = v
	return nil
}

func setRegion(to *string, v string) error {
	if !events.IsResidency(v) {
		return errors.New("must be 1 to 32 lower-case letters, digits and -, beginning with a letter, e.g. eu-central-1")
	}
	*to = v
	return nil
}

func setNetworks(to *[]netip.Prefix, v string) error {
	*to = nil
	for text := range strings.SplitSeq(v, ",") {
		if v == "" {
			return nil
		}
		network, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || network != network.Masked() {
			return errors.New("must be networks in CIDR form, separated by commas, e.g. 10.1.0.0/16,fd00:1::/48")
		}
		*to = append(*to, network)
	}
	return nil
}

func setSwitch(to *bool, v string) error {
	if v != "on" && v != "off" {
		return errors.New("must be on or off")
	}
	*to = v == "on"
	return nil
}

func setBool(to *bool, v string) error {
	if v != "true" && v != "false" {
		return errors.New("must be true or false")
	}
	*to = v == "true"
	return nil
}

func setDuration(to *time.Duration, v string) error {
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return errors.New("must be a duration above zero, e.g. 5m or 168h")
	}
	*to = d
	return nil
}

// setDays accepts a day or more: the database keeps each row for that long.
func setDays(to *time.Duration, v string) error {
	d, err := time.ParseDuration(v)
	if err != nil || d < 24*time.Hour {
		return errors.New("must be a duration of 24h or more, e.g. 720h")
	}
	*to = d
	return nil
}

func setCount(to *int64, v string) error {
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n <= 0 {
		return errors.New("must be a whole number above zero")
	}
	*to = n
	return nil
}

func setCountOrNone(to *int64, v string) error {
	if v == "0" {
		*to = 0
		return nil
	}
	if err := setCount(to, v); err != nil {
		return errors.New("must be a whole number, 0 or more")
	}
	return nil
}

func setCopies(to *int16, v string) error {
	if v == "" {
		*to = 0
		return nil
	}
	n, err := strconv.ParseInt(v, 10, 16)
	if err != nil || n <= 0 {
		return errors.New("must be a whole number above zero, or empty")
	}
	*to = int16(n)
	return nil
}

func setPercent(to *int64, v string) error {
	if err := setCount(to, v); err != nil || *to > 100 {
		return errors.New("must be a whole number from 1 to 100")
	}
	return nil
}

func setRatio(to *float64, v string) error {
	ratio, err := strconv.ParseFloat(v, 64)
	if err != nil || !ratioForm.MatchString(v) || ratio > 1 {
		return errors.New("must be a number from 0 to 1, e.g. 0.01")
	}
	*to = ratio
	return nil
}

func setLevel(to *slog.Level, v string) error {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, v) {
		return errors.New("must be one of debug, info, warn, error")
	}
	return to.UnmarshalText([]byte(v))
}

func setAddr(to *string, v string) error {
	if !hostPort(v) {
		return errors.New("must be host:port, e.g. 127.0.0.1:8080 or :8080")
	}
	*to = v
	return nil
}

func setOptionalAddr(to *string, v string) error {
	if v == "" {
		*to = ""
		return nil
	}
	return setAddr(to, v)
}

// sameAddress reports whether two addresses cannot both be listened on: they have the same port, and
// the same host or all hosts.
func sameAddress(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	every := []string{"", "0.0.0.0", "::"}
	return hostA == hostB || slices.Contains(every, hostA) || slices.Contains(every, hostB)
}

func hostPort(v string) bool {
	_, port, err := net.SplitHostPort(v)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func setBrokers(to *[]string, v string) error {
	*to = nil
	for b := range strings.SplitSeq(v, ",") {
		if b = strings.TrimSpace(b); b == "" {
			continue
		}
		if host, _, _ := net.SplitHostPort(b); !hostPort(b) || host == "" {
			return errors.New("must be a list of host:port, separated by commas")
		}
		*to = append(*to, b)
	}
	return nil
}

func setRoles(to *[]string, v string) error {
	*to = nil
	if v == "all" {
		*to = AllRoles()
		return nil
	}
	for r := range strings.SplitSeq(v, ",") {
		if r = strings.TrimSpace(r); r == "sealer" { // a name of the contract, not used yet
			return errors.New("the role sealer is not available in this version")
		}
		if !slices.Contains(AllRoles(), r) {
			return fmt.Errorf("must be all, or some of %s, separated by commas", strings.Join(AllRoles(), ", "))
		}
		if !slices.Contains(*to, r) {
			*to = append(*to, r)
		}
	}
	return nil
}

// setDatabase accepts a URL or a list of key=value pairs, as libpq does.
func setDatabase(to *string, v string) error {
	u, err := url.Parse(v)
	isURL := err == nil && (u.Scheme == "postgres" || u.Scheme == "postgresql")
	if v != "" && !isURL && (strings.Contains(v, "://") || !strings.Contains(v, "=")) {
		return errors.New("must be postgres://user:password@host:port/database, or key=value pairs")
	}
	*to = v
	return nil
}

func setURL(to *string, v string) error {
	u, err := url.Parse(v)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return errors.New("must be http://host:port or https://host:port")
	}
	// A proxy may serve the API below a path of its own; the API's own paths are added to it.
	if strings.HasPrefix(u.Path, "/api") || strings.HasPrefix(u.Path, "/docs") || strings.HasPrefix(u.Path, "/console") {
		return fmt.Errorf("has the path %s: give %s://%s alone, the paths of the API are added to it", u.Path, u.Scheme, u.Host)
	}
	*to = strings.TrimRight(v, "/")
	return nil
}

// setOrigins parses the origins of sites: a scheme and a host, without a path.
func setOrigins(to *[]string, v string) error {
	*to = nil
	for origin := range strings.SplitSeq(v, ",") {
		if origin = strings.TrimSpace(origin); origin == "" {
			continue
		}
		if !originForm.MatchString(origin) {
			return errors.New("must be origins as https://app.example.com, separated by commas")
		}
		*to = append(*to, origin)
	}
	return nil
}

// setUnsafe parses the names of the allowed dangers. There is no name for all of them:
// an operator must review a new kind of danger.
func setUnsafe(to *[]string, v string) error {
	*to = nil
	known := unsafeWords()
	for word := range strings.SplitSeq(v, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		if !slices.Contains(known, word) {
			return fmt.Errorf("must be some of %s, separated by commas", strings.Join(known, ", "))
		}
		*to = append(*to, word)
	}
	return nil
}

func unsafeWords() (words []string) {
	for _, d := range postgres.Dangers() {
		words = append(words, d.Name)
	}
	return words
}
