package http_test

import (
	"bufio"
	"context"
	nethttp "net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/projections/overview"
)

// TestConsole_OperatorKeysAreCreatedRotatedAndRevoked: each secret is shown once, and the key works as long as the page says so.
func TestConsole_OperatorKeysAreCreatedRotatedAndRevoked(t *testing.T) {
	w := newTestService(t)
	b := w.signIn(bootstrap)
	const at = "/console/new/operator-key"
	form := b.follow(b.open(at))
	sent := url.Values{"name": {"night <shift>"}, "scopes": {"billing", "audit"}}
	made := b.act(form, at, "for the night shift", sent)
	b.shows(made, "shown once")
	secret := regexp.MustCompile(`mp_op_[A-Za-z0-9_-]{43}`).FindString(string(made.body))
	b.shows(b.act(form, at, "for the night shift", sent), "This was done already")
	if n := b.recorded(events.APIKeyCreated, ""); n != 1 || w.do(call{method: "GET", path: "/api/v1/rebuilds", key: secret}).status != 200 {
		t.Errorf("%d keys were created, or the key does not work", n)
	}
	list := b.open("/console/keys")
	b.shows(list, "night &lt;shift&gt;", "billing, audit")
	if strings.Contains(string(list.body), secret) {
		t.Error("the secret is shown again")
	}
	id := regexp.MustCompile(`/console/keys/([0-9a-f-]{36})/rotate`).FindStringSubmatch(string(list.body))[1]
	rotated := b.act(list, "/console/keys/"+id+"/rotate", "yearly", url.Values{"overlapSeconds": {"0"}})
	b.shows(rotated, "shown once")
	renewed := regexp.MustCompile(`mp_op_[A-Za-z0-9_-]{43}`).FindString(string(rotated.body))
	if old := w.do(call{method: "GET", path: "/api/v1/rebuilds", key: secret}).status; old != 401 || renewed == secret {
		t.Errorf("the old key gives %d", old)
	}
	list = b.open("/console/keys")
	id = regexp.MustCompile(`/console/keys/([0-9a-f-]{36})/revoke`).FindStringSubmatch(string(list.body))[1]
	b.shows(b.follow(b.act(list, "/console/keys/"+id+"/revoke", "left", nil)), "Done: Revoke.")
	b.follow(b.act(list, "/console/keys/"+id+"/revoke", "left", nil))
	if got := w.do(call{method: "GET", path: "/api/v1/rebuilds", key: renewed}).status; got != 401 || b.recorded(events.APIKeyRevoked, "") == 0 {
		t.Errorf("a revoked key gives %d", got)
	}
	reader, _ := w.key("", nil, "audit")
	if got := w.signIn(reader).open("/console/keys"); got.status != nethttp.StatusForbidden {
		t.Errorf("a key without the scope gives %d", got.status)
	}
	tenant := w.signIn(accountKey(w))
	for _, path := range []string{"/console/keys", "/console/system", "/console/overview", "/console/dead-letters", "/console/rebuilds", "/console/replays", "/console/overview/stream"} {
		if got := tenant.open(path); got.status != nethttp.StatusNotFound {
			t.Errorf("%s gives a tenant %d", path, got.status)
		}
	}
}

// accountKey returns the key of a tenant, with every scope.
func accountKey(w *testService) string {
	w.Helper()
	w.catalogue()
	return w.newAccount("A").key
}

// TestConsole_TheSystemIsShown: dependencies, lives, heads, the outbox with its leases, and withheld records.
func TestConsole_TheSystemIsShown(t *testing.T) {
	failed := false
	w := newTestService(t, func(s *http.Server) {
		s.Instance = http.ServiceInstance{ID: "host-1", Roles: []string{"api", "relay"}, Settings: []http.Setting{{Name: "KAFKA_SASL_PASSWORD", Value: "********", Origin: "environment"}}}
		check := s.Health[0].Check
		s.Health[0].Check = func(ctx context.Context) error {
			if failed {
				return context.DeadlineExceeded
			}
			return check(ctx)
		}
	})
	w.catalogue()
	a := w.newAccount("A")
	w.ingest(a, batch(event("1", nil)))
	w.withhold(a, events.TopicUsageValidated, 1000, 3)
	_, err := w.pool.Exec(t.Context(), `UPDATE relay_cursors SET owner = 'host-<b>', lease_until = now() + interval '1 hour', attempts = 7, last_error = 'no broker <script>', last_attempt_at = now() WHERE partition = 3`)
	w.must(err)
	w.asOwner(`INSERT INTO instances (id, version, roles, started_at, seen_at, ended_at) VALUES ('node-1', 'v<1>', '{api,relay}', now() - interval '1 hour', now(), NULL),
 ('node-2', 'v1', '{relay}', now() - interval '1 hour', now() - interval '5 minutes', NULL), ('node-3', 'v1', '{}', now() - interval '1 hour', now() - interval '1 minute', now() - interval '1 minute')`)
	listed := w.get("/system/instances?limit=2")
	if rows := listed["data"].([]any); len(rows) != 2 || rows[0].(map[string]any)["state"] != "RUNNING" || rows[1].(map[string]any)["state"] != "LOST" || listed["nextCursor"] == nil {
		t.Errorf("the instances are %v", listed)
	}
	b := w.signIn(bootstrap)
	b.shows(b.open("/console/system"), `<code>node-1</code></td><td>RUNNING</td><td>api, relay</td><td><code>v&lt;1&gt;</code>`, `<code>node-2</code></td><td class="bad">LOST</td>`, `<code>node-3</code></td><td>ENDED</td>`)
	logID := w.get("/system")["logId"].(string)
	b.shows(b.open("/console/system"), logID, "host-&lt;b&gt;", "no broker &lt;script&gt;", "The identity holds.", "<dt>postgres</dt><dd>ok</dd>", "first", `<code>host-&lt;b&gt;</code></td><td class="number">1</td>`)
	b.shows(b.open("/console/system/withheld?topic=usage.validated&tenantId="+a.id), "too large", "usage.validated")
	b.shows(b.open("/console/system/settings"), "host-1", "api, relay", "KAFKA_SASL_PASSWORD", "********", "environment")
	failed = true
	if got := b.open("/console/system"); got.status != 200 || !strings.Contains(string(got.body), "not_ready") || !strings.Contains(string(got.body), logID) {
		t.Errorf("without a dependency the page gives %d", got.status)
	}
}

// TestConsole_ReplaysAreStartedOnce: the relay goes back, a range is published again, each once, and both are listed.
func TestConsole_ReplaysAreStartedOnce(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	w.ingest(a, batch(event("1", nil)))
	b := w.signIn(bootstrap)
	form := b.follow(b.open("/console/new/rewind"))
	sent := url.Values{"consumer": {"meterplex-usage-aggregator"}, "to": {"start"}}
	done := b.act(form, "/console/new/rewind", "the topic <was> restored", sent)
	b.shows(b.follow(done), "RUNNING", "the topic &lt;was&gt; restored", "meterplex-usage-aggregator")
	b.follow(b.act(form, "/console/new/rewind", "the topic <was> restored", sent))
	refused := b.act(b.follow(b.open("/console/new/rewind")), "/console/new/rewind", "wrong", url.Values{"consumer": {"none"}})
	if body := string(refused.body); refused.status != nethttp.StatusNotFound || !strings.Contains(body, "consumer_not_found") || !strings.Contains(body, `value="wrong"`) {
		t.Errorf("an unknown consumer gives %d:\n%s", refused.status, body)
	}
	b.follow(b.act(b.follow(b.open("/console/new/replay")), "/console/new/replay", "the index lost events", url.Values{"topic": {"usage.raw"}, "fromTime": {"2026-01-01T00:00:00Z"}}))
	var replays, via int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM replays`).Scan(&replays))
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows l JOIN log_origins o ON o.id = l.origin WHERE o.via = 'console' AND l.payload ->> 'reason' LIKE 'the %'`).Scan(&via))
	if replays != 2 || via != 2 {
		t.Errorf("%d replays, %d events", replays, via)
	}
	b.shows(b.open("/console/replays"), "the index lost events", "consumer", "range")
}

// TestConsole_TheOverviewShowsEachFigureWithItsScope: items lead to pages of the console, and charts have their tables.
func TestConsole_TheOverviewShowsEachFigureWithItsScope(t *testing.T) {
	w, live, _ := watchedService(t)
	w.catalogue()
	live.Board.SetOutbox(overview.Backlog{Recorded: 9007199254740993, Unpublished: 12, OldestSeconds: 90}, time.Now())
	live.Board.SetConsumers([]overview.Consumer{{Name: "meterplex-usage-aggregator", Positions: 40, Seconds: 0.25}})
	live.Board.SetIdentity(overview.Comparison{Holds: false, Accepted: 10, Missing: 3, ComparedAt: time.Now()})
	live.Board.SetAttention(overview.FailedDeadLetters, overview.Item(overview.FailedDeadLetters, "VALIDATION", 5, nil, "/api/v1/dead-letters?status=FAILED&stage=VALIDATION"))
	live.Board.SetRead(time.Now())
	b := w.signIn(bootstrap)
	if got := b.open("/console"); got.header.Get("Location") != "/console/overview" {
		t.Errorf("the console begins with %s", got.header.Get("Location"))
	}
	next := b.follows("/console/overview/stream")
	part := ""
	for !strings.Contains(part, "9007199254740993") {
		part = next()
	}
	for _, want := range []string{`<a href="/console/dead-letters?stage=VALIDATION&amp;status=FAILED">dead letters failed</a>`, `<a href="/console/system">outbox stalled</a>`, `<a href="/console/system">identity broken</a>`, `data-append="chart-rates"`, `data-append="chart-lag-meterplex-usage-aggregator"`} {
		if !strings.Contains(part, want) {
			t.Errorf("the stream does not show %s:\n%s", want, part)
		}
	}
	page := b.open("/console/overview")
	b.shows(page, "9007199254740993", "The identity does not hold", `<strong>3</strong>installation`, "<strong>0</strong>this instance", `data-stream="/console/overview/stream"`, `data-table="chart-rates"`, `<table id="chart-rates"`)
	b.shows(b.open("/console/overview?figure=outbox"), `<table id="chart-outbox"`, "<td>12</td><td>90</td>")
	b.shows(b.open("/console/overview?figure=lag&consumer=meterplex-usage-aggregator"), `<table id="chart-lag-meterplex-usage-aggregator"`, "<td>40</td><td>0.25</td>")
	b.shows(b.open("/console/overview?figure=lag&consumer=%3Cscript%3E"), "choose a consumer")
}

// follows opens a live part. The returned function waits for the text of its next event.
func (b *browser) follows(path string) func() string {
	b.Helper()
	r, err := nethttp.NewRequestWithContext(b.Context(), nethttp.MethodGet, b.url+path, nil)
	b.must(err)
	r.Header.Set("Cookie", b.cookie)
	got, err := b.client.Do(r)
	b.must(err)
	b.Cleanup(func() { got.Body.Close() })
	if got.StatusCode != nethttp.StatusOK || got.Header.Get("Content-Type") != "text/event-stream" || got.Header.Get("Content-Security-Policy") == "" {
		b.Fatalf("the stream %s gives %d %v", path, got.StatusCode, got.Header)
	}
	lines := bufio.NewScanner(got.Body)
	lines.Buffer(nil, 1<<20)
	return func() string {
		var event strings.Builder
		for lines.Scan() {
			if data, isData := strings.CutPrefix(lines.Text(), "data: "); isData {
				event.WriteString(data + "\n")
			} else if lines.Text() == "" && event.Len() > 0 {
				return event.String()
			}
		}
		return event.String()
	}
}
