package tour

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/internal/must"
)

// TestTheTourUsesOnlyItsOwnServers: the tour promotes a planted fault, so it must never
// use a real service's database, brokers or data.
func TestTheTourUsesOnlyItsOwnServers(t *testing.T) {
	env := map[string]string{
		"DATABASE_URL": "postgres://theirs/d", "DATABASE_MIGRATE_URL": "postgres://theirs/d", "DATABASE_READ_URL": "postgres://theirs/d",
		"KAFKA_BROKERS": "theirs:9092", "KAFKA_REPLICATION": "3", "METERPLEX_TOPIC_PREFIX": "theirs.", "METERPLEX_ROLES": "relay",
		"METERPLEX_DATA_DIR": "/theirs", "METERPLEX_HTTP_ADDR": "0.0.0.0:80", "METERPLEX_HTTP_TLS_CERT": "theirs",
		"METERPLEX_HTTP_TLS_KEY":           "theirs",
		"METERPLEX_BOOTSTRAP_OPERATOR_KEY": "mp_op_theirs-theirs-theirs-theirs-theirs", "METERPLEX_ROLLBACK_KEEP": "1s",
	}
	given, _, err := config.Load("", func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	must.OK(t, err)
	cfg, err := (&Tour{Given: given, DataDir: "own"}).settings()
	must.OK(t, err)
	// Its commands look at its own servers, as verify does: without them it would skip most checks.
	cfg.DatabaseURL, cfg.Kafka = "postgres://own/d", config.Kafka{Brokers: []string{"own:9092"}, SASLMechanism: "PLAIN",
		SASLUsername: "own", SASLPassword: "own"}
	tour, url := &Tour{cfg: cfg, Stdout: io.Discard}, "http://own"
	tour.url.Store(&url)
	tour.Command = func(env config.Lookup, _ []string) int {
		seen, _, err := config.Load("", env)
		must.OK(t, err)
		if seen.DatabaseURL != cfg.DatabaseURL || seen.Pipe != config.PipeKafka || seen.Kafka.Brokers[0] != "own:9092" ||
			seen.Kafka.SASLPassword != "own" || seen.URL != url || seen.Key != cfg.BootstrapOperatorKey {
			t.Errorf("a command of the tour sees %+v", seen)
		}
		return yes
	}
	must.OK(t, tour.do(yes, "verify"))
	if raw, _ := json.Marshal(cfg); strings.Contains(string(raw), "theirs") {
		t.Errorf("the tour would work with what is others': %s", raw)
	}
	cfg.Kafka = config.Kafka{}
	if cfg.HTTPAddr != "127.0.0.1:0" || cfg.DataDir != "own" || len(cfg.Roles) != len(config.AllRoles()) ||
		cfg.RollbackKeep != 24*time.Hour || cfg.Kafka.Replication != 0 {
		t.Errorf("%+v", cfg)
	}
}
