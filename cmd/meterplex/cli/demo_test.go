package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// withFakeService replaces the console's service by the fake service, until ctx ends.
func withFakeService(c *console, p *fakeService) {
	c.app.service = func(ctx context.Context, _ config.Config, ready chan<- node.Endpoints) error {
		ready <- node.Endpoints{URL: p.url, DatabaseURL: "postgres://meterplex:database-secret@127.0.0.1/meterplex",
			Kafka:      config.Kafka{Brokers: []string{"127.0.0.1:9092"}},
			SignInLink: func(context.Context) (string, error) { return p.url + "/console/link/xxx", nil }}
		<-ctx.Done()
		return ctx.Err()
	}
}

func TestDemoTwice(t *testing.T) {
	tier.AtSize(t)
	p := newFakeService(t)
	c := newConsole(t, p)
	withFakeService(c, p)
	for range 2 {
		code, out, errs := c.run("demo", "--for", "1800ms", "--rate", "2", "--show-password")
		if code != app.ExitYes || !strings.Contains(errs, "Stopped.") {
			t.Fatalf("exit code %d\n%s%s", code, out, errs)
		}
		for _, want := range []string{p.url + "/console\n", p.url + "/console/link/xxx\n", p.url + "/docs", p.url + "/metrics",
			"postgres://meterplex:database-secret@127.0.0.1/meterplex", "usage.raw", "event_log", "mp_live_xxx", "mp_op_",
			"18059974 in 8819 events"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not in\n%s", want, out)
			}
		}
		if strings.Contains(out, "%!") {
			t.Errorf("the text's verbs are wrong:\n%s", out)
		}
	}
	events, sums := p.totals()
	if events["input_tokens"] != 8819 || sums["output_tokens"] != 245_896 || events["api_calls"] < 4 {
		t.Errorf("the service counts %v %v", events, sums)
	}
	if created := slices.DeleteFunc(slices.Clone(p.requests), func(r string) bool {
		return !strings.HasPrefix(r, "POST") || !strings.Contains(r, "/api-keys")
	}); len(created) != 1 {
		t.Errorf("%d keys were made: %q", len(created), created)
	}
	dir, _ := c.app.Env("METERPLEX_DATA_DIR")
	if info, err := os.Stat(filepath.Join(dir, "demo", "api-key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
}

func TestDemoReportsWhyTheServiceDoesNotStart(t *testing.T) {
	c := newConsole(t, newFakeService(t))
	c.app.service = func(context.Context, config.Config, chan<- node.Endpoints) error {
		return errors.New("port 8080 is in use")
	}
	if code, _, errs := c.run("demo"); code != app.ExitUnknown || !strings.Contains(errs, "port 8080 is in use") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// TestDemoScriptInAShell: the printed script works in a POSIX shell unchanged.
func TestDemoScriptInAShell(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl on this machine")
	}
	p := newFakeService(t)
	c := newConsole(t, p)
	withFakeService(c, p)
	_, text, _ := c.run("demo", "--for", "1ms", "--rate", "0")
	if strings.Contains(text, "database-secret") ||
		!strings.Contains(text, "postgres://meterplex:********@127.0.0.1/meterplex (--show-password") {
		t.Errorf("the demo prints the database's address as\n%s", text)
	}
	_, script, _ := strings.Cut(text, "the figure that counts it:\n\n")
	script, _, _ = strings.Cut(script, "\nThe same eventId again")
	before := len(p.known)
	dir, _ := c.app.Env("METERPLEX_DATA_DIR")
	file := filepath.Join(dir, "demo", "settings.env")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || !strings.Contains(text, "meterplex verify --config "+file) {
		t.Errorf("the file of settings: %v, %v\n%s", info, err, text)
	}
	if cfg, _, err := config.Load(file, func(string) (string, bool) { return "", false }); err != nil ||
		cfg.DatabaseURL != "postgres://meterplex:database-secret@127.0.0.1/meterplex" ||
		cfg.URL != p.url || !strings.HasPrefix(cfg.Key, "mp_op_") || !slices.Equal(cfg.Kafka.Brokers, []string{"127.0.0.1:9092"}) {
		t.Errorf("the settings are %+v, %v", cfg, err)
	}
	sh := exec.Command("sh", "-eu", "-c", script)
	var out, errs bytes.Buffer
	sh.Stdout, sh.Stderr = &out, &errs
	if err := sh.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var answer struct{ AsOfPosition string }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &answer); err != nil || answer.AsOfPosition != fmt.Sprintf("3-%d", before+1) ||
		len(p.known) != before+1 {
		t.Errorf("%v, %d events are known, then %d\n%s%s", err, before, len(p.known), out.String(), errs.String())
	}
}

// TestDemoWithAFakeStripe: the demo's tenant is its customer, the service has its address and key, and each counted amount is shown.
func TestDemoWithAFakeStripe(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	withFakeService(c, p)
	inner := c.app.service
	c.app.service = func(ctx context.Context, cfg config.Config, ready chan<- node.Endpoints) error {
		form := url.Values{"event_name": {"api_calls"}, "identifier": {"mp_1"}, "payload[value]": {"42"},
			"payload[stripe_customer_id]": {"cus_demo"}, "timestamp": {fmt.Sprint(time.Now().Unix())}}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, cfg.StripeURL+"/v1/billing/meter_events", strings.NewReader(form.Encode()))
		must.OK(t, err)
		r.Header.Set("Authorization", "Bearer "+cfg.StripeKey)
		answer, err := http.DefaultClient.Do(r)
		must.OK(t, err)
		if answer.Body.Close(); answer.StatusCode != http.StatusOK {
			t.Errorf("the fake Stripe answers %d", answer.StatusCode)
		}
		return inner(ctx, cfg, ready)
	}
	code, out, errs := c.run("demo", "--for", "1ms", "--rate", "0", "--fake-stripe")
	http.DefaultClient.CloseIdleConnections()
	if code != app.ExitYes || !strings.Contains(out, "Stripe        http://127.0.0.1:") ||
		!strings.Contains(errs, "Stripe (fake) counts 42 api_calls of cus_demo") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if !slices.Contains(p.requests, `PUT /api/v1/tenants/id-1/billing {"customer":"cus_demo","provider":"stripe"}`) {
		t.Errorf("%q", p.requests)
	}
	c.setEnv(map[string]string{"METERPLEX_STRIPE_KEY": "sk_test_1"})
	if code, _, errs := c.run("demo", "--fake-stripe"); code != app.ExitUnknown || !strings.Contains(errs, "leave METERPLEX_STRIPE_KEY") {
		t.Errorf("with a key: exit code %d\n%s", code, errs)
	}
}
