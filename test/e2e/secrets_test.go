package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// secrets are the secrets to search for, by name.
type secrets struct {
	testing.TB
	known map[string]string
	bytes map[string]int64 // searched, by place
}

// search fails the test for every secret in a text.
func (s *secrets) search(place string, text []byte) {
	s.Helper()
	s.bytes[place] += int64(len(text))
	for name, secret := range s.known {
		if at := bytes.Index(text, []byte(secret)); at >= 0 {
			s.Errorf("%s contains the %s: %q", place, name, text[max(0, at-120):at])
		}
	}
}

// TestP9_SecretsAreNotStoredOrLogged uses valid and invalid keys of every kind in every way, and
// searches for them in the answers, logs, spans, tables, topics and files.
func TestP9_SecretsAreNotStoredOrLogged(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	const stripeKey, collectorKey = "sk_test_canaryCanaryCanaryCanary", "canary-of-the-collector"
	spans := newCollector(t)
	at := w.serve("", append(spans.settings(), "METERPLEX_LOG_LEVEL=debug", "METERPLEX_STRIPE_KEY="+stripeKey,
		"METERPLEX_STRIPE_URL=http://127.0.0.1:1",
		"OTEL_EXPORTER_OTLP_HEADERS=api-key="+collectorKey)...)
	owner, err := url.Parse(w.db)
	must.OK(t, err)
	password, _ := owner.User.Password()
	s := &secrets{t, map[string]string{"bootstrap key": w.operator, "database password": password, "Stripe key": stripeKey,
		"collector's key": collectorKey}, map[string]int64{}}
	useKeys(w, at, s)
	w.settle(at, w.tenants...)
	within(t, "all is published", func(ctx context.Context) (bool, string) {
		var behind int
		err := w.sql.QueryRow(ctx, `SELECT count(*) FROM relay_cursors c JOIN log_heads h USING (partition) WHERE c.position < h.position`).
			Scan(&behind)
		return err == nil && behind == 0, fmt.Sprint(behind, err)
	})
	if pid := at.pid(); pid > 0 {
		arguments, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err == nil { // exists on Linux only
			s.search("the process's arguments", arguments)
		}
	}
	s.search("config print", configPrinted(w, at))
	at.stop()
	s.search("the log", []byte(at.lastLines(1<<30)))
	s.search("the spans", spans.received())
	s.searchDatabase(w)
	s.searchTopics(w)
	s.searchFiles(at)
	for _, place := range []string{"answers", "metrics", "the log", "the spans", "config print", "the database", "the topics",
		"PostgreSQL's log"} {
		if s.bytes[place] < 100 {
			t.Errorf("only %d bytes of %s were searched", s.bytes[place], place)
		}
	}
	t.Logf("looked for %d secrets in %v bytes", len(s.known), s.bytes)
}

// useKeys creates, uses, rotates and revokes keys, and sends them in wrong places.
func useKeys(w *deployment, at *instance, s *secrets) {
	w.catalogue(at)
	x := w.createTenants(at, 1)[0]
	keys := "/api/v1/tenants/" + x.id + "/api-keys"
	made := func(name, path string, body any, header ...string) (id string) {
		var answer struct{ ID, Secret string }
		w.ask(w.operator, http.MethodPost, at, path, body, &answer, http.StatusCreated, header...)
		s.known[name] = answer.Secret
		return answer.ID
	}
	s.known["tenant's key"] = x.key
	spare := made("key with an Idempotency-Key", keys, object{"name": "spare", "scopes": []string{"usage:read"}}, "Idempotency-Key",
		"canary")
	rotated := made("rotated key", keys+"/"+spare+"/rotate", object{"overlapSeconds": 60})
	revoked := made("revoked key", keys, object{"name": "gone", "scopes": []string{"usage:read"}})
	made("operator's key", "/api/v1/operator-keys", object{"name": "auditor", "scopes": []string{"audit"}})
	w.ask(w.operator, http.MethodDelete, at, keys+"/"+revoked, nil, nil, http.StatusNoContent)
	hooks := "/api/v1/tenants/" + x.id + "/webhooks"
	hook := made("webhook secret", hooks, object{"url": "https://example.com/hook", "events": []string{"period.closed"}}, "Idempotency-Key",
		"hook")
	made("rotated webhook secret", hooks+"/"+hook+"/rotate", object{"overlapSeconds": 60})
	s.known["key that does not exist"] = "mp_live_canary-canary-canary-canary-canary-canary"
	w.ingest(at, x, "accepted", events("secret", 20, features()[0])...)
	asked := func(key, method, path string, in any, header ...string) {
		status, body, err := w.call(w.t.Context(), key, method, at.url()+path, in, header...)
		must.OK(w.t, err)
		s.search("answers", body)
		if path == "/metrics" && status == http.StatusOK {
			s.search("metrics", body)
		}
	}
	// the stored first answer
	asked(w.operator, http.MethodPost, keys, object{"name": "spare", "scopes": []string{"usage:read"}}, "Idempotency-Key", "canary")
	asked(w.operator, http.MethodPost, hooks, object{"url": "https://example.com/hook", "events": []string{"period.closed"}},
		"Idempotency-Key", "hook")
	asked(w.operator, http.MethodGet, hooks, nil)
	for _, secret := range s.known {
		for _, path := range []string{"/api/v1/usage/events", "/api/v1/usage/events?key=" + secret, keys, keys + "/" + rotated,
			"/api/v1/operator-keys", "/api/v1/events?limit=1000", "/api/v1/events/export", "/readyz", "/metrics", "/openapi.json",
			"/nothing"} {
			asked(secret, http.MethodGet, path, nil)
		}
		asked(secret, http.MethodPost, "/api/v1/usage/events", object{"events": []object{{"eventId": "e"}}})
		asked("", http.MethodGet, "/api/v1/usage/events?limit=1", nil, "Authorization", "Basic "+secret)
		asked("", http.MethodGet, "/api/v1/usage/events?limit=1", nil, "Authorization", "Bearer "+secret+"x")
	}
}

// configPrinted returns the output of config print in the instance's environment.
func configPrinted(w *deployment, at *instance) []byte {
	w.t.Helper()
	path, err := binary()
	must.OK(w.t, err)
	cmd := exec.CommandContext(w.t.Context(), path, "config", "print", "-o", "json")
	cmd.Env = at.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	return out
}

// searchDatabase searches every row of every table, as text, but the secrets of webhooks in their own.
func (s *secrets) searchDatabase(w *deployment) {
	s.Helper()
	rows, err := w.sql.Query(s.Context(),
		`SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
	must.OK(s, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 20 {
		s.Fatal(tables, err)
	}
	for _, table := range tables {
		if table == "public.webhook_secrets" {
			continue // each request is signed with them
		}
		rows, err := w.sql.Query(s.Context(), `SELECT t::text FROM `+table+` t`)
		must.OK(s, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			s.Fatal(table, err)
		}
		s.search("the database", []byte(strings.Join(lines, "\n")))
	}
}

// searchTopics searches every record, with its key and headers.
func (s *secrets) searchTopics(w *deployment) {
	s.Helper()
	client := w.kafka(kgo.ConsumeTopics(topicNames(w)...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer client.Close()
	for records := 0; ; {
		ctx, cancel := context.WithTimeout(s.Context(), 3*time.Second)
		fetched := client.PollFetches(ctx)
		cancel()
		fetched.EachRecord(func(r *kgo.Record) {
			records++
			text := append(append([]byte{}, r.Key...), r.Value...)
			for _, h := range r.Headers {
				text = append(append(text, h.Key...), h.Value...)
			}
			s.search("the topics", text)
		})
		if fetched.NumRecords() == 0 && records > 0 {
			return
		}
		if s.Context().Err() != nil {
			s.Fatal("the topics are empty")
		}
	}
}

// searchFiles searches the instance's data directory and the logs of PostgreSQL.
func (s *secrets) searchFiles(at *instance) {
	s.Helper()
	for _, setting := range at.env {
		if dir, ok := strings.CutPrefix(setting, "METERPLEX_DATA_DIR="); ok {
			_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					text, _ := os.ReadFile(path)
					s.search("the data directory", text)
				}
				return nil
			})
		}
	}
	logs, _ := filepath.Glob(filepath.Join(filepath.Dir(localtest.Postgres(s).Dir()), "*", "postgres.log"))
	for _, path := range append(logs, filepath.Join(localtest.Postgres(s).Dir(), "postgres.log"),
		filepath.Join(filepath.Dir(localtest.Postgres(s).Dir()), "postgres.log")) {
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		text, _ := io.ReadAll(file)
		_ = file.Close()
		s.search("PostgreSQL's log", text)
	}
}
