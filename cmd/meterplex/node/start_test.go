package node

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/infra/local/folder"
	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/internal/must"
)

// TestATakenAddressIsReportedBeforeAnythingStarts: no database is queried or migrated.
func TestATakenAddressIsReportedBeforeAnythingStarts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer taken.Close()
	addr := taken.Addr().String()
	for setting, cfg := range map[string]config.Config{
		"METERPLEX_HTTP_ADDR":  {HTTPAddr: addr, Roles: []string{"api"}},
		"METERPLEX_ADMIN_ADDR": {HTTPAddr: "127.0.0.1:0", AdminAddr: addr, Roles: []string{"relay"}},
	} {
		cfg.DatabaseURL, cfg.Pipe, cfg.DataDir = "postgres://nobody@127.0.0.1:1/none", config.PipePostgres, t.TempDir()
		err := Serve(t.Context(), cfg, "", nil)
		if err == nil || !strings.Contains(err.Error(), setting) || !strings.Contains(err.Error(), addr) ||
			!strings.Contains(err.Error(), "in use") {
			t.Errorf("%s: %v", setting, err)
		}
	}
	// An instance without the role api works without the address.
	if err := checkAddresses(config.Config{HTTPAddr: addr, Roles: []string{"relay"}}); err != nil {
		t.Error(err)
	}
}

// TestADataDirectoryWithoutRightsIsNamed: with the setting and the remedy, before a server is downloaded.
func TestADataDirectoryWithoutRightsIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	cfg := config.Config{HTTPAddr: "127.0.0.1:0", Roles: []string{"api"}, DataDir: filepath.Join(file, "data")}
	err := Serve(t.Context(), cfg, "", nil)
	if err == nil || !strings.Contains(err.Error(), "METERPLEX_DATA_DIR") || !strings.Contains(err.Error(), cfg.DataDir) ||
		!strings.Contains(err.Error(), "another directory") {
		t.Error(err)
	}
	fresh := config.Config{DataDir: filepath.Join(t.TempDir(), "a", "b")}
	if err := checkDataDir(fresh); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(fresh.DataDir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	if err := checkDataDir(config.Config{DataDir: cfg.DataDir, DatabaseURL: "postgres://", Pipe: config.PipePostgres}); err != nil {
		t.Errorf("no embedded server needs the directory: %v", err)
	}
}

// TestNothingEmbeddedStartsBesideADatabase: without brokers, a given database is the pipe, as in the chart; an embedded Kafka starts only
// if asked.
func TestNothingEmbeddedStartsBesideADatabase(t *testing.T) {
	given := config.Config{DatabaseURL: "postgres://"}
	for _, c := range []struct {
		pipe    string
		brokers []string
		want    string
	}{{"", nil, config.PipePostgres}, {config.PipeKafka, nil, config.PipeKafka}, {"", []string{"kafka:9092"}, config.PipeKafka},
		{config.PipePostgres, []string{"kafka:9092"}, config.PipePostgres}} {
		cfg := given
		cfg.Pipe, cfg.Kafka.Brokers = c.pipe, c.brokers
		var log bytes.Buffer
		own := &Servers{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		if got := own.choosePipe(cfg); got.Pipe != c.want || strings.Contains(log.String(), "METERPLEX_PIPE=kafka") != (c.pipe == "" &&
			c.brokers == nil) {
			t.Errorf("%+v: the pipe is %s\n%s", c, got.Pipe, &log)
		}
	}
	given.DataDir = filepath.Join(t.TempDir(), "none")
	if _, err := os.Stat(given.DataDir); checkDataDir(given) != nil || err == nil {
		t.Error("a folder for data that nothing writes")
	}
}

// TestDamagedDataOfKafkaCanBeMovedAway: the log has every event, so that the advice loses no event.
func TestDamagedDataOfKafkaCanBeMovedAway(t *testing.T) {
	for _, c := range []struct {
		cause error
		holds bool
	}{{fmt.Errorf("start Kafka: %w", localkafka.ErrExited), true}, {localkafka.ErrNoJava, false}, {folder.ErrInUse, false}} {
		got := advisedOfBroker(c.cause, "/var/lib/meterplex").Error()
		if strings.Contains(got, filepath.Join("/var/lib/meterplex", "kafka")) != c.holds ||
			strings.Contains(got, "docs/runbooks/kafka-data-lost.md") != c.holds {
			t.Errorf("%v: %s", c.cause, got)
		}
	}
}
