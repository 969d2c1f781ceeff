package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
)

// TestJSONLogsAreJSONToTheLastLine: with JSON logs, all output on stderr is JSON.
func TestJSONLogsAreJSONToTheLastLine(t *testing.T) {
	c := newConsole(t, nil)
	c.setEnv(map[string]string{"METERPLEX_LOG_FORMAT": "json", "METERPLEX_LOG_LEVEL": "error"})
	c.app.service = func(_ context.Context, cfg config.Config, ready chan<- node.Endpoints) error {
		ready <- node.Endpoints{URL: "http://127.0.0.1:1", API: true}
		for !strings.Contains(c.err.String(), "answers at") {
			time.Sleep(time.Millisecond)
		}
		node.NewLogger(c.app.Stderr, cfg).Error("a role ended")
		return errors.New("it ended:\nfor a reason")
	}
	code, _, errs := c.run("serve")
	lines := strings.Split(strings.TrimSpace(errs), "\n")
	if code != app.ExitUnknown || len(lines) != 3 {
		t.Fatalf("exit code %d\n%s", code, errs)
	}
	for i, want := range []string{"The service answers at http://127.0.0.1:1", "a role ended", "run the service: it ended:\nfor a reason"} {
		var line struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(lines[i]), &line); err != nil || line.Msg != want || line.Time == "" || line.Level == "" {
			t.Errorf("%s, %v; want %q", lines[i], err, want)
		}
	}
}

// TestServePrintsItsAddresses: a service without the API prints the address of its
// health endpoints.
func TestServePrintsItsAddresses(t *testing.T) {
	for want, at := range map[string]node.Endpoints{
		"The service answers at http://x": {URL: "http://x", API: true},
		"The service answers at http://x\n/livez, /readyz and /metrics are at http://y": {URL: "http://x", API: true,
			AdminURL: "http://y"},
		"The service runs, without the role api: /livez, /readyz and /metrics are at http://y": {AdminURL: "http://y"},
		"The service runs, without the role api: /livez, /readyz and /metrics are at http://x": {URL: "http://x"},
		"The service runs, without the role api: this instance answers no HTTP":                {},
	} {
		c := newConsole(t, nil)
		c.app.service = func(ctx context.Context, _ config.Config, ready chan<- node.Endpoints) error {
			ready <- at
			for strings.Count(c.err.String(), "\n") <= strings.Count(want, "\n") {
				time.Sleep(time.Millisecond)
			}
			return errors.New("enough")
		}
		if _, _, errs := c.run("serve"); !strings.HasPrefix(errs, want+"\n") {
			t.Errorf("%+v: %s", at, errs)
		}
	}
}

// TestTheStandardAddressIsTheAPIs: an instance without the API does not occupy the
// default address, which an instance with it needs.
func TestTheStandardAddressIsTheAPIs(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{nil, "127.0.0.1:8080"},
		{map[string]string{"METERPLEX_ROLES": "api,relay"}, "127.0.0.1:8080"},
		{map[string]string{"METERPLEX_ROLES": "relay"}, "127.0.0.1:0"},
		{map[string]string{"METERPLEX_ROLES": "relay", "METERPLEX_HTTP_ADDR": "127.0.0.1:8080"}, "127.0.0.1:8080"},
	} {
		shell := newConsole(t, nil)
		shell.app.Env = func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }
		var at string
		shell.app.service = func(_ context.Context, cfg config.Config, _ chan<- node.Endpoints) error {
			at = cfg.HTTPAddr
			return errors.New("enough")
		}
		if shell.run("serve"); at != c.want {
			t.Errorf("%v: %s, want %s", c.env, at, c.want)
		}
	}
}
