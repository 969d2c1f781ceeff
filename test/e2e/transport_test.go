package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// securedBroker is a broker with TLS, SCRAM, certificates of clients, and ACLs.
type securedBroker struct {
	*localkafka.Broker
	ca string // a file
	by *localtest.CA
}

func newSecuredBroker(t *testing.T, users map[string]string) *securedBroker {
	t.Helper()
	ca := localtest.NewCA(t, "the authority")
	own := ca.Sign(t, "broker", 20*24*time.Hour, "127.0.0.1")
	broker, err := localkafka.Start(t.Context(), localkafka.Config{DataDir: localtest.Folder(t), Users: users,
		TLS: &localkafka.TLS{Certificate: own.Cert, Key: own.Key, ClientCA: ca.PEM}})
	must.OK(t, err)
	t.Cleanup(func() {
		if err := broker.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &securedBroker{broker, localtest.File(t, "ca.pem", ca.PEM), ca}
}

// by256 reports whether a user logs in with SCRAM-SHA-256; others use SCRAM-SHA-512.
func by256(user string) bool { return len(user)%2 == 0 }

// setPassword replaces the SCRAM password of a user.
func setPassword(w *deployment, admin *kadm.Client, user, password string) {
	w.t.Helper()
	mechanism := kadm.ScramSha512
	if by256(user) {
		mechanism = kadm.ScramSha256
	}
	changed, err := admin.AlterUserSCRAMs(w.t.Context(), nil, []kadm.UpsertSCRAM{{User: user, Mechanism: mechanism, Iterations: 4096,
		Password: password}})
	if err == nil {
		err = changed.Error()
	}
	must.OK(w.t, err)
}

// access returns the settings of a user's connections: a password, or a certificate for the user validator.
func (b *securedBroker) access(t *testing.T, user, password string) []string {
	t.Helper()
	settings := []string{"KAFKA_TLS_ENABLED=true", "KAFKA_TLS_CA=" + b.ca}
	if user == "validator" {
		cert, key := b.by.Sign(t, user, time.Hour).Files(t)
		return append(settings, "KAFKA_BROKERS="+b.CertifiedBrokers()[0], "KAFKA_TLS_CERT="+cert, "KAFKA_TLS_KEY="+key)
	}
	mechanism := "SCRAM-SHA-512"
	if by256(user) {
		mechanism = "SCRAM-SHA-256"
	}
	return append(settings, "KAFKA_BROKERS="+b.SecuredBrokers()[0], "KAFKA_SASL_MECHANISM="+mechanism, "KAFKA_SASL_USERNAME="+user,
		"KAFKA_SASL_PASSWORD="+password)
}

// examineWithAccess runs verify and doctor with the settings of the service. Neither needs further rights.
func examineWithAccess(w *deployment, at *instance) {
	w.t.Helper()
	requireProven(w, "over TLS", w.verify(at))
	path, err := binary()
	must.OK(w.t, err)
	for _, args := range [][]string{{"doctor", "-o", "json"}, {"config", "print", "-o", "json"}} {
		cmd := exec.Command(path, args...)
		cmd.Env, cmd.SysProcAttr = append([]string{"HOME=" + w.t.TempDir(), "DATABASE_URL=" + w.db, "METERPLEX_TOPIC_PREFIX=" + w.prefix,
			"METERPLEX_URL=" + at.url()}, w.access...), childAttributes()
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			w.t.Fatal(err)
		}
		if text := out.String() + said.String(); strings.Contains(text, "canary") {
			w.t.Errorf("%v shows the password: %s", args, text)
		}
		if args[0] != "doctor" {
			continue
		}
		var findings []struct{ Check, State, Finding string }
		if err := json.Unmarshal(out.Bytes(), &findings); err != nil {
			w.t.Fatalf("doctor: %v: %s%s", err, out.String(), said.String())
		}
		ok := map[string]string{}
		for _, f := range findings {
			ok[f.Check] = f.State + ": " + f.Finding
		}
		for _, check := range []string{"kafka_login", "kafka_tls", "certificates", "topics", "durability", "retention", "broker_clock"} {
			if !strings.HasPrefix(ok[check], "ok: ") {
				w.t.Errorf("doctor: %s is %q", check, ok[check])
			}
		}
	}
}

// loseAccess revokes the rights of the login, and then changes its password, while the service runs: each is logged a few times, by the
// setting or the ACL, and ingest continues. What was queued is counted once the access is back.
func loseAccess(w *deployment, at *instance, admin *kadm.Client, user, password string, acls [][]string) {
	w.t.Helper()
	x := w.tenants[0]
	for _, c := range []struct {
		name, logged string
		lose, regain func()
	}{
		{"the ACLs are revoked", "needs the ACL", func() {
			all := kadm.NewACLs().AnyResource().Allow("User:" + user).AllowHosts("*").Operations().ResourcePatternType(kadm.ACLPatternAny)
			if _, err := admin.DeleteACLs(w.t.Context(), all); err != nil {
				w.t.Fatal(err)
			}
		}, func() {
			for _, line := range acls {
				if line[0] == "User:"+user {
					grantACL(w, admin, line)
				}
			}
		}},
		{"the password is changed", "KAFKA_SASL_PASSWORD", func() { setPassword(w, admin, user, "canary-changed") },
			func() { setPassword(w, admin, user, password) }},
	} {
		before := len(at.lines())
		c.lose()
		within(w.t, c.name, func(context.Context) (bool, string) {
			w.ingest(at, x, "accepted", events(fmt.Sprint(c.logged[:5], time.Now().UnixNano()), 1, "api_calls")...)
			return strings.Contains(strings.Join(at.lines()[before:], "\n"), c.logged), at.lastLines(10)
		})
		if c.logged == "KAFKA_SASL_PASSWORD" {
			within(w.t, "the reason is at /readyz", func(ctx context.Context) (bool, string) {
				status, body, err := w.call(ctx, "", http.MethodGet, at.url()+"/readyz", nil)
				return err == nil && status == http.StatusOK &&
						bytes.Contains(body, []byte(`"kafka":"does not answer: authentication failed"`)),
					fmt.Sprint(status, string(body), err)
			})
		}
		time.Sleep(10 * time.Second) // clients try many times meanwhile
		repeats := map[string][]string{}
		for _, line := range at.lines()[before:] {
			key := strings.Join(loggedBy.FindAllString(line, -1), " ")
			if repeats[key] = append(repeats[key], line); len(repeats[key]) == 4 {
				w.t.Errorf("%s: it is logged again and again:\n%s", c.name, strings.Join(repeats[key], "\n"))
			}
		}
		w.t.Logf("%s: %d lines are logged", c.name, len(at.lines())-before)
		c.regain()
		w.settle(at, x)
		w.drain()
	}
	if text := at.lastLines(1 << 30); strings.Contains(text, "canary") {
		w.t.Error("the log holds a password")
	}
}

// loggedBy matches the members of a line by which its repetitions are recognized.
var loggedBy = regexp.MustCompile(`(msg|topic|for|projection)=("[^"]*"|\S+)`)

// lines returns the lines of the log.
func (i *instance) lines() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.logs[:len(i.logs):len(i.logs)]
}
