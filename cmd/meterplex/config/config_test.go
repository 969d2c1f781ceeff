package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func noEnv(string) (string, bool) { return "", false }

func envOf(m map[string]string) Lookup {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

func TestConfigPrecedence(t *testing.T) {
	const name = "METERPLEX_HTTP_ADDR"
	flag := map[string]given{name: {":1", "flag --http-addr"}}
	env := envOf(map[string]string{name: ":2", "METERPLEX_DATA_DIR": ""})
	file := map[string]given{name: {":3", "file x:1"}, "METERPLEX_DATA_DIR": {"d", "file x:2"}}
	for _, c := range []struct {
		flags        map[string]given
		env          Lookup
		file         map[string]given
		want, source string
	}{
		{flag, env, file, ":1", "flag --http-addr"},
		{nil, env, file, ":2", "environment"},
		{nil, noEnv, file, ":3", "file x:1"},
		{nil, noEnv, nil, "127.0.0.1:8080", "default"},
	} {
		cfg, all, err := resolve(c.flags, c.env, c.file, allSettings())
		if err != nil || cfg.HTTPAddr != c.want || all[0].Source != c.source {
			t.Errorf("%q from %q, %v; want %q from %q", cfg.HTTPAddr, all[0].Source, err, c.want, c.source)
		}
	}
	// An empty variable counts as not given.
	if cfg, _, _ := resolve(nil, env, file, allSettings()); cfg.DataDir != "d" {
		t.Errorf("the data directory is %q", cfg.DataDir)
	}
}

func TestConfigDefaults(t *testing.T) {
	cfg, _, err := resolve(nil, noEnv, nil, allSettings())
	if err != nil || cfg.IngestAhead != 5*time.Minute || cfg.IngestBehind != 168*time.Hour || cfg.Region != "unspecified" ||
		cfg.LogFormat != "text" ||
		cfg.DataDir != "./.meterplex" || !slices.Equal(cfg.Roles, AllRoles()) || cfg.Pipe != "" || cfg.Kafka.Brokers != nil {
		t.Errorf("%+v, %v", cfg, err)
	}
}

// allSettings are those of a command that runs the service.
func allSettings() map[string]bool { return takenBy(ServiceFlags{}) }

// A combination of settings that a command does not take is left to those that do.
func TestOtherCommandsIgnoreContradictions(t *testing.T) {
	env := envOf(map[string]string{"KAFKA_SASL_PASSWORD": "hidden-canary", "KAFKA_TLS_CA": "x", "DATABASE_READ_URL": "postgres://h/d"})
	if _, _, err := Load("", env); err != nil {
		t.Errorf("a command without these settings: %v", err)
	}
	_, _, err := Load("", env, KafkaAccess{})
	if err == nil || !strings.Contains(err.Error(), "KAFKA_SASL_MECHANISM") || !strings.Contains(err.Error(), "KAFKA_TLS_ENABLED") ||
		strings.Contains(err.Error(), "DATABASE") {
		t.Errorf("a command that takes KAFKA_*: %v", err)
	}
}

func TestConfigRefusals(t *testing.T) {
	for _, c := range [][2]string{
		{"METERPLEX_HTTP_ADDR", "8080"}, {"METERPLEX_HTTP_ADDR", "x:99999"}, {"METERPLEX_ADMIN_ADDR", "9090"},
		{"METERPLEX_ADMIN_ADDR", "x:http"},
		{"METERPLEX_ADMIN_ADDR", "http://x:9090"}, {"DATABASE_URL", "mysql://u:hidden-canary@h/d"},
		{"DATABASE_URL", "postgres://u:hidden-canary@h:a b/"}, {"KAFKA_BROKERS", "a:1,b"}, {"KAFKA_BROKERS", ":9092"},
		{"KAFKA_TLS_ENABLED", "yes"}, {"KAFKA_SASL_MECHANISM", "NTLM"}, {"KAFKA_REPLICATION", "0"}, {"KAFKA_REPLICATION", "three"},
		{"METERPLEX_PIPE", "rabbit"},
		{"METERPLEX_BOOTSTRAP_OPERATOR_KEY", "mp_op_hidden-canary"}, {"METERPLEX_ROLES", "api,cook"}, {"METERPLEX_ROLES", "api,sealer"},
		{"METERPLEX_STRIPE_KEY", "hidden-canary"}, {"METERPLEX_STRIPE_URL", "stripe"}, {"METERPLEX_ROLES", "api,"},
		{"METERPLEX_INGEST_AHEAD", "0s"}, {"METERPLEX_INGEST_BEHIND", "a week"}, {"METERPLEX_LOG_LEVEL", "INFO+2"},
		{"METERPLEX_LOG_FORMAT", "xml"}, {"METERPLEX_URL", "localhost:8080"}, {"METERPLEX_URL", "http://u:hidden-canary@h"},
		{"METERPLEX_KEY", "hidden-canary"}, {"METERPLEX_TOPIC_PREFIX", "a b"}, {"METERPLEX_REGION", "EU"}, {"METERPLEX_REGION", "eu_1"},
		{"METERPLEX_STRIPE_KEY", "hidden-canary"}, {"METERPLEX_STRIPE_KEY", "pk_live_1"}, {"METERPLEX_STRIPE_KEY", "sk_live_hidden-canary"},
		{"METERPLEX_STRIPE_URL", "api.stripe.com"},
		{"METERPLEX_STRIPE_URL", "https://hidden-canary@api.stripe.com"},
		{"METERPLEX_TRACE_RATIO", "2"}, {"METERPLEX_TRACE_RATIO", "-1"}, {"METERPLEX_TRACE_RATIO", "NaN"}, {"METERPLEX_TRACE_RATIO", "x"},
		{"METERPLEX_TRACE_RATIO", "1.0000001"},
		{"METERPLEX_TRACE_RATIO", "1e-3"}, {"METERPLEX_TRACE_RATIO", "0x1p-2"}, {"METERPLEX_TRACE_RATIO", ".5"},
		{"METERPLEX_TRACE_RATIO", "inf"}, {"METERPLEX_TRACE_RATIO", "1%"}, {"METERPLEX_TRACE_RATIO", "+1"},
		{"KAFKA_SASL_PASSWORD", "hidden-canary"}, {"KAFKA_TLS_CA", "x"}, {"METERPLEX_HTTP_TLS_KEY", "x"},
		{"DATABASE_READ_URL", "postgres://h/d"},
	} {
		_, _, err := resolve(nil, envOf(map[string]string{c[0]: c[1]}), nil, allSettings())
		if err == nil {
			t.Errorf("%s=%s is accepted", c[0], c[1])
			continue
		}
		if text := err.Error(); !strings.Contains(text, c[0][:9]) || strings.Contains(text, "hidden-canary") {
			t.Errorf("%s=%s is refused with: %s", c[0], c[1], text)
		}
	}
	_, _, err := resolve(nil, envOf(map[string]string{"METERPLEX_ROLES": "api,sealer"}), nil, allSettings())
	if want := "the role sealer is not available in this version"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the role sealer: %v", err)
	}
	_, _, err = resolve(map[string]given{"METERPLEX_PIPE": {"x", "flag --pipe"}}, envOf(map[string]string{"METERPLEX_LOG_LEVEL": "x"}), nil,
		allSettings())
	if text := err.Error(); !strings.Contains(text, "METERPLEX_PIPE (from flag --pipe)") ||
		!strings.Contains(text, "METERPLEX_LOG_LEVEL (from environment)") {
		t.Errorf("both faults with their sources: %s", text)
	}
}

func TestConfigFile(t *testing.T) {
	file, err := parseFile("x", "# comment\n\nDATABASE_URL = postgres://u:p@h/d?a=b \r\nMETERPLEX_PIPE='kafka'\nKAFKA_BROKERS=\n")
	if err != nil || file["DATABASE_URL"] != (given{"postgres://u:p@h/d?a=b", "file x:3"}) || file["METERPLEX_PIPE"].value != "kafka" {
		t.Errorf("%v, %v", file, err)
	}
	for _, bad := range []string{"METERPLEX_PIPES=kafka", "METERPLEX_PIPE", "METERPLEX_PIPE=kafka\nMETERPLEX_PIPE=postgres",
		"export METERPLEX_PIPE=kafka"} {
		if _, err := parseFile("x", bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestNetworksOfWebhooksAreChecked(t *testing.T) {
	for v, want := range map[string]string{"": "[]", "10.1.0.0/16": "[10.1.0.0/16]",
		"10.1.0.0/16, fd00:1::/48": "[10.1.0.0/16 fd00:1::/48]"} {
		cfg, _, err := resolve(nil, envOf(map[string]string{"METERPLEX_WEBHOOK_ALLOW": v}), nil, allSettings())
		if got := fmt.Sprint(cfg.WebhookAllow); err != nil || got != want {
			t.Errorf("%q: %s, %v", v, got, err)
		}
	}
	for _, v := range []string{"10.1.0.0", "10.1.2.3/16", "x", "10.0.0.0/8,", "10.0.0.0/33", "localhost"} {
		if _, _, err := resolve(nil, envOf(map[string]string{"METERPLEX_WEBHOOK_ALLOW": v}), nil, allSettings()); err == nil ||
			!strings.Contains(err.Error(), "CIDR") {
			t.Errorf("%q: %v", v, err)
		}
	}
}

func TestOriginsOfFramesAreChecked(t *testing.T) {
	resolved := func(v string) (string, error) {
		cfg, _, err := resolve(nil, envOf(map[string]string{"METERPLEX_PORTAL_FRAMES": v}), nil, allSettings())
		return fmt.Sprint(cfg.PortalFrames), err
	}
	for v, want := range map[string]string{"": "[]", "https://app.example.com": "[https://app.example.com]",
		"https://a.example, http://127.0.0.1:3000": "[https://a.example http://127.0.0.1:3000]"} {
		if got, err := resolved(v); err != nil || got != want {
			t.Errorf("%q: %s, %v", v, got, err)
		}
	}
	for _, v := range []string{"*", "app.example.com", "https://a.example/", "https://a.example; script-src *",
		"https://*.example", "'self'", "javascript:x"} {
		if got, err := resolved(v); err == nil {
			t.Errorf("%q is accepted as %s", v, got)
		}
	}
}

func TestTheRatioOfTracesIsANumberFrom0To1(t *testing.T) {
	for v, want := range map[string]float64{"": 0, "0": 0, "0.0": 0, "0.01": 0.01, "1": 1, "1.0": 1, "0.000001": 0.000001} {
		cfg, _, err := resolve(nil, envOf(map[string]string{"METERPLEX_TRACE_RATIO": v}), nil, allSettings())
		if err != nil || cfg.TraceRatio != want {
			t.Errorf("%q: %g, %v", v, cfg.TraceRatio, err)
		}
	}
	_, _, err := resolve(nil, envOf(map[string]string{"METERPLEX_TRACE_RATIO": "2"}), nil, allSettings())
	if want := "METERPLEX_TRACE_RATIO (from environment): must be a number from 0 to 1, e.g. 0.01"; err == nil || err.Error() != want {
		t.Errorf("refused with %q, want %q", err, want)
	}
}

func TestUnsafeWordsAreChecked(t *testing.T) {
	for v, want := range map[string]string{"": "", "fsync": "fsync", " fsync , superuser,": "fsync superuser"} {
		cfg, _, err := resolve(nil, envOf(map[string]string{"METERPLEX_ALLOW_UNSAFE": v}), nil, allSettings())
		if got := strings.Join(cfg.AllowUnsafe, " "); err != nil || got != want {
			t.Errorf("%q: %q, %v", v, got, err)
		}
	}
	for _, v := range []string{"all", "true", "fsync=off", "FSYNC", "*"} {
		_, _, err := resolve(nil, envOf(map[string]string{"METERPLEX_ALLOW_UNSAFE": v}), nil, allSettings())
		if err == nil || !strings.Contains(err.Error(), "fsync, full_page_writes, synchronous_commit") {
			t.Errorf("%q: %v", v, err)
		}
	}
}

// TestTheAdminAddressIsAnotherAddress: an instance without the role api does not listen on the
// address of the API.
func TestTheAdminAddressIsAnotherAddress(t *testing.T) {
	for _, c := range []struct {
		http, admin, roles string
		refused            bool
	}{
		{"127.0.0.1:8080", "", "all", false},
		{"127.0.0.1:8080", "127.0.0.1:9090", "all", false},
		{"127.0.0.1:0", "127.0.0.1:0", "all", false},
		{"127.0.0.1:8080", "127.0.0.2:8080", "all", false},
		{"127.0.0.1:8080", "127.0.0.1:8080", "all", true},
		{"127.0.0.1:8080", ":8080", "all", true},
		{"[::]:8080", "127.0.0.1:8080", "api,relay", true},
		{"0.0.0.0:8080", "10.0.0.1:8080", "all", true},
		{"127.0.0.1:8080", "127.0.0.1:8080", "relay", false},
	} {
		env := map[string]string{"METERPLEX_HTTP_ADDR": c.http, "METERPLEX_ADMIN_ADDR": c.admin, "METERPLEX_ROLES": c.roles}
		cfg, _, err := resolve(nil, envOf(env), nil, allSettings())
		if (err != nil) != c.refused || cfg.AdminAddr != c.admin ||
			err != nil && !strings.Contains(err.Error(), "METERPLEX_ADMIN_ADDR and METERPLEX_HTTP_ADDR are the same") {
			t.Errorf("%+v: %q, %v", c, cfg.AdminAddr, err)
		}
	}
}

// TestTheStripeKeyIsHidden: a live key is sent by https only, and no listing or error shows a key.
func TestTheStripeKeyIsHidden(t *testing.T) {
	for _, c := range []struct {
		key, url string
		refused  bool
	}{
		{"sk_live_canary", "", false},
		{"rk_live_canary", "https://stripe.example", false},
		{"sk_test_canary", "http://127.0.0.1:12111", false},
		{"sk_live_canary", "http://127.0.0.1:12111", true},
		{"rk_live_canary", "http://stripe.example", true},
		{"sk_live_canary", "HTTP://stripe.example", true},
		{"rk_live_canary", "Http://stripe.example", true},
		{"sk_live_canary", "HTTPS://stripe.example", false},
	} {
		cfg, all, err := resolve(nil, envOf(map[string]string{"METERPLEX_STRIPE_KEY": c.key, "METERPLEX_STRIPE_URL": c.url}), nil,
			allSettings())
		if (err != nil) != c.refused || cfg.StripeKey != c.key || err != nil && (strings.Contains(err.Error(), "canary") ||
			!strings.Contains(err.Error(), "METERPLEX_STRIPE_URL is not https")) {
			t.Errorf("%s at %q: %v", c.key, c.url, err)
		}
		for _, r := range all {
			if shown := r.Shown(); strings.Contains(shown, "canary") || r.Name == "METERPLEX_STRIPE_KEY" && shown != masked ||
				r.Name == "METERPLEX_STRIPE_URL" && c.url == "" && shown != "https://api.stripe.com" {
				t.Errorf("%s is shown as %s", r.Name, shown)
			}
		}
	}
}
