package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestJSONLogsAreJSONToTheLastLine: with JSON logs, all output on stderr is JSON.
func TestJSONLogsAreJSONToTheLastLine(t *testing.T) {
	c := newConsole(t, nil)
	c.with(map[string]string{"METERPLEX_LOG_FORMAT": "json", "METERPLEX_LOG_LEVEL": "error"})
	c.app.service = func(_ context.Context, cfg Config, ready chan<- Endpoints) error {
		ready <- Endpoints{URL: "http://127.0.0.1:1", API: true}
		for !strings.Contains(c.err.String(), "answers at") {
			time.Sleep(time.Millisecond)
		}
		newLogger(c.app.stderr, cfg).Error("a role ended")
		return errors.New("it ended:\nfor a reason")
	}
	code, _, errs := c.run("serve")
	lines := strings.Split(strings.TrimSpace(errs), "\n")
	if code != exitUnknown || len(lines) != 3 {
		t.Fatalf("exit code %d\n%s", code, errs)
	}
	for i, want := range []string{"The service answers at http://127.0.0.1:1", "a role ended", "run the service: it ended:\nfor a reason"} {
		var line struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(lines[i]), &line); err != nil || line.Msg != want || line.Time == "" || line.Level == "" {
			t.Errorf("%s, %v; want %q", lines[i], err, want)
		}
	}
}

// withStack is an error with a stack trace, as some libraries return.
type withStack struct{ error }

func (w withStack) Format(f fmt.State, _ rune) {
	fmt.Fprint(f, w.Error())
	if f.Flag('+') {
		fmt.Fprint(f, "\nmain.go:7")
	}
}

// nobody is an error whose Error panics on a nil receiver.
type nobody struct{ name string }

func (n *nobody) Error() string { return n.name }

// TestLogsTellErrorsInWords: neither log format contains an error's stack trace.
func TestLogsTellErrorsInWords(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var log bytes.Buffer
		newLogger(&log, Config{LogFormat: format}).Warn("no", "error", fmt.Errorf("read: %w", withStack{errors.New("gone")}), "cause", withStack{errors.New("away")})
		newLogger(&log, Config{LogFormat: format}).Warn("a nil pointer", "error", (*net.OpError)(nil), "cause", (*nobody)(nil))
		if got := log.String(); strings.Contains(got, "main.go") || !strings.Contains(got, "read: gone") || !strings.Contains(got, "away") {
			t.Errorf("%s: %s", format, got)
		}
	}
}

// TestServeSaysWhatAnswersWhere: a service without the API prints the address of its
// health endpoints.
func TestServeSaysWhatAnswersWhere(t *testing.T) {
	for want, at := range map[string]Endpoints{
		"The service answers at http://x": {URL: "http://x", API: true},
		"The service runs, without the role api: /livez, /readyz and /metrics are at http://x": {URL: "http://x"},
		"The service runs, without the role api: this instance answers no HTTP":                {},
	} {
		c := newConsole(t, nil)
		c.app.service = func(ctx context.Context, _ Config, ready chan<- Endpoints) error {
			ready <- at
			for c.err.String() == "" {
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
		shell.app.env = func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }
		var at string
		shell.app.service = func(_ context.Context, cfg Config, _ chan<- Endpoints) error {
			at = cfg.HTTPAddr
			return errors.New("enough")
		}
		if shell.run("serve"); at != c.want {
			t.Errorf("%v: %s, want %s", c.env, at, c.want)
		}
	}
}

// TestCertificatesAreReadFirst: an unreadable certificate is reported before the server
// listens.
func TestCertificatesAreReadFirst(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	made := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &made, &made, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := Config{HTTPTLSCert: filepath.Join(dir, "cert"), HTTPTLSKey: filepath.Join(dir, "key")}
	if _, err := httpTLS(cfg); err == nil || !strings.Contains(err.Error(), "METERPLEX_HTTP_TLS_CERT") || !strings.Contains(err.Error(), dir) {
		t.Errorf("without files: %v", err)
	}
	for path, block := range map[string]*pem.Block{cfg.HTTPTLSCert: {Type: "CERTIFICATE", Bytes: der}, cfg.HTTPTLSKey: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := httpTLS(cfg); err != nil || len(got.Certificates) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := httpTLS(Config{}); err != nil || got != nil {
		t.Errorf("without settings: %v, %v", got, err)
	}
}
