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
}

// settings lists all settings, in the order of config print.
func settings() []setting {
	return []setting{
		{"METERPLEX_HTTP_ADDR", "127.0.0.1:8080", nil, func(c *Config, v string) error { return setAddr(&c.HTTPAddr, v) }},
		{"METERPLEX_HTTP_TLS_CERT", "", nil, func(c *Config, v string) error { return setText(&c.HTTPTLSCert, v) }},
		{"METERPLEX_HTTP_TLS_KEY", "", nil, func(c *Config, v string) error { return setText(&c.HTTPTLSKey, v) }},
		{"METERPLEX_HTTP_IDLE_TIME", "620s", nil, func(c *Config, v string) error { return setDuration(&c.HTTPIdle, v) }},
		{"METERPLEX_HTTP_ADDRESS_CONNECTIONS", "0", nil, func(c *Config, v string) error { return setCountOrNone(&c.HTTPOfOne, v) }},
		{"METERPLEX_ADMIN_ADDR", "", nil, func(c *Config, v string) error { return setOptionalAddr(&c.AdminAddr, v) }},
		{"DATABASE_URL", "", MaskURL, func(c *Config, v string) error { return setDatabase(&c.DatabaseURL, v) }},
		{"DATABASE_MIGRATE_URL", "", MaskURL, func(c *Config, v string) error { return setDatabase(&c.DatabaseMigrateURL, v) }},
		{"DATABASE_READ_URL", "", MaskURL, func(c *Config, v string) error { return setDatabase(&c.DatabaseReadURL, v) }},
		{"METERPLEX_DATABASE_CONNECTIONS", "0", nil, func(c *Config, v string) error { return setCountOrNone(&c.DatabaseConnections, v) }},
		{"KAFKA_BROKERS", "", nil, func(c *Config, v string) error { return setBrokers(&c.Kafka.Brokers, v) }},
		{"KAFKA_TLS_ENABLED", "false", nil, func(c *Config, v string) error { return setBool(&c.Kafka.TLS, v) }},
		{"KAFKA_TLS_CA", "", nil, func(c *Config, v string) error { return setText(&c.Kafka.TLSCA, v) }},
		{"KAFKA_TLS_CERT", "", nil, func(c *Config, v string) error { return setText(&c.Kafka.TLSCert, v) }},
		{"KAFKA_TLS_KEY", "", nil, func(c *Config, v string) error { return setText(&c.Kafka.TLSKey, v) }},
		{"KAFKA_TLS_SERVER_NAME", "", nil, func(c *Config, v string) error { return setText(&c.Kafka.TLSServerName, v) }},
		{"KAFKA_SASL_MECHANISM", "", nil, func(c *Config, v string) error {
			return setWord(&c.Kafka.SASLMechanism, v, "", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
		}},
		{"KAFKA_SASL_USERNAME", "", nil, func(c *Config, v string) error { return setText(&c.Kafka.SASLUsername, v) }},
		{"KAFKA_SASL_PASSWORD", "", maskAll, func(c *Config, v string) error { return setText(&c.Kafka.SASLPassword, v) }},
		{"KAFKA_REPLICATION", "", nil, func(c *Config, v string) error { return setCopies(&c.Kafka.Replication, v) }},
		{"METERPLEX_PIPE", "", nil, func(c *Config, v string) error { return setWord(&c.Pipe, v, "", PipeKafka, PipePostgres) }},
		{"METERPLEX_DATA_DIR", "./.meterplex", nil, func(c *Config, v string) error { return setText(&c.DataDir, v) }},
		{"METERPLEX_BOOTSTRAP_OPERATOR_KEY", "", maskAll, func(c *Config, v string) error {
			return setPattern(&c.BootstrapOperatorKey, v, bootstrapKey, "must be mp_op_ and then at least 32 letters, digits, - or _")
		}},
		{"METERPLEX_ROLES", "all", nil, func(c *Config, v string) error { return setRoles(&c.Roles, v) }},
		{"METERPLEX_TOPIC_PREFIX", "", nil, func(c *Config, v string) error {
			return setPattern(&c.TopicPrefix, v, topicPrefix, "may hold up to 100 letters, digits, dots, - and _")
		}},
		{"METERPLEX_REGION", events.ResidencyUnspecified, nil, func(c *Config, v string) error { return setRegion(&c.Region, v) }},
		{"METERPLEX_INGEST_AHEAD", "5m", nil, func(c *Config, v string) error { return setDuration(&c.IngestAhead, v) }},
		{"METERPLEX_INGEST_BEHIND", "168h", nil, func(c *Config, v string) error { return setDuration(&c.IngestBehind, v) }},
		{"METERPLEX_REBUILD_CHUNK", "100000", nil, func(c *Config, v string) error { return setCount(&c.RebuildChunk, v) }},
		{"METERPLEX_REBUILD_SHARE", "40", nil, func(c *Config, v string) error { return setPercent(&c.RebuildShare, v) }},
		{"METERPLEX_ROLLBACK_KEEP", "24h", nil, func(c *Config, v string) error { return setDuration(&c.RollbackKeep, v) }},
		{"METERPLEX_ANSWER_KEEP", "720h", nil, func(c *Config, v string) error { return setDays(&c.AnswerKeep, v) }},
		{"METERPLEX_ENDED_KEEP", "2160h", nil, func(c *Config, v string) error { return setDays(&c.EndedKeep, v) }},
		{"METERPLEX_ERASURES", "", nil, func(c *Config, v string) error { return setText(&c.Erasures, v) }},
		{"METERPLEX_WEBHOOK_ALLOW", "", nil, func(c *Config, v string) error { return setNetworks(&c.WebhookAllow, v) }},
		{"METERPLEX_STRIPE_KEY", "", maskAll, func(c *Config, v string) error {
			return setPattern(&c.StripeKey, v, stripeKey,
				"must begin with sk_test_, sk_live_, rk_test_ or rk_live_ and hold letters and digits after it")
		}},
		{"METERPLEX_STRIPE_URL", "https://api.stripe.com", MaskURL, func(c *Config, v string) error { return setURL(&c.StripeURL, v) }},
		{"METERPLEX_CONSOLE", "on", nil, func(c *Config, v string) error { return setSwitch(&c.Console, v) }},
		{"METERPLEX_PORTAL_FRAMES", "", nil, func(c *Config, v string) error { return setOrigins(&c.PortalFrames, v) }},
		{"METERPLEX_ALLOW_UNSAFE", "", nil, func(c *Config, v string) error { return setUnsafe(&c.AllowUnsafe, v) }},
		{"METERPLEX_TRACE_RATIO", "0", nil, func(c *Config, v string) error { return setRatio(&c.TraceRatio, v) }},
		{"METERPLEX_LOG_LEVEL", "info", nil, func(c *Config, v string) error { return setLevel(&c.LogLevel, v) }},
		{"METERPLEX_LOG_FORMAT", "text", nil, func(c *Config, v string) error { return setWord(&c.LogFormat, v, "text", "json") }},
		{"METERPLEX_URL", "http://127.0.0.1:8080", MaskURL, func(c *Config, v string) error { return setURL(&c.URL, v) }},
		{"METERPLEX_KEY", "", maskAll, func(c *Config, v string) error {
			return setPattern(&c.Key, v, keyForm, "must begin with mp_live_, mp_test_ or mp_op_ and hold no spaces")
		}},
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
		if r = strings.TrimSpace(r); r == "sealer" { // a name of the contract that nothing uses yet
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
