package http_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/projections/state"
)

// TestConsole_TheSystemIsShown: dependencies, lives, heads, the outbox with its leases, and withheld records.
func TestConsole_TheSystemIsShown(t *testing.T) {
	failed := false
	w, a := newServiceWithAccount(t, func(s *http.Server) {
		s.Instance = api.ServiceInstance{ID: "host-1", Roles: []string{"api", "relay"},
			Settings: []api.Setting{{Name: "KAFKA_SASL_PASSWORD", Value: "********", Origin: "environment"}}}
		check := s.Health[0].Check
		s.Health[0].Check = func(ctx context.Context) error {
			if failed {
				return context.DeadlineExceeded
			}
			return check(ctx)
		}
	})
	w.ingest(a, batch(event("1", nil)))
	w.withhold(a, events.TopicUsageValidated, 1000, 3)
	_, err := w.pool.Exec(t.Context(),
		`UPDATE relay_cursors SET owner = 'host-<b>', lease_until = now() + interval '1 hour', attempts = 7,
			last_error = 'no broker <script>', last_attempt_at = now() WHERE partition = 3`)
	w.must(err)
	w.asOwner(`INSERT INTO instances (id, version, roles, started_at, seen_at, ended_at) VALUES ('node-1', 'v<1>', '{api,relay}',
		now() - interval '1 hour', now(), NULL),
 ('node-2', 'v1', '{relay}', now() - interval '1 hour', now() - interval '5 minutes', NULL), ('node-3', 'v1', '{}',
 now() - interval '1 hour', now() - interval '1 minute', now() - interval '1 minute')`)
	listed := w.get("/system/instances?limit=2")
	if rows := listed["data"].([]any); len(rows) != 2 || rows[0].(map[string]any)["state"] != "RUNNING" ||
		rows[1].(map[string]any)["state"] != "LOST" || listed["nextCursor"] == nil {
		t.Errorf("the instances are %v", listed)
	}
	b := w.signIn(bootstrap)
	b.shows(b.open("/console/system"), `<code>node-1</code></td><td><span class="state good">RUNNING</span></td><td>api, relay</td>`+
		`<td><code>v&lt;1&gt;</code>`,
		`<code>node-2</code></td><td><span class="state bad">LOST</span></td>`,
		`<code>node-3</code></td><td><span class="state">ENDED</span></td>`)
	logID := w.get("/system")["logId"].(string)
	b.shows(b.open("/console/system"), logID, "host-&lt;b&gt;", "no broker &lt;script&gt;", "The balance check holds.",
		"<dt>postgres</dt><dd>ok</dd>", "first", `<code>host-&lt;b&gt;</code></td><td class="number">1</td>`)
	b.shows(b.open("/console/system/withheld?topic=usage.validated&tenantId="+a.id), "too large", "usage.validated")
	b.shows(b.open("/console/system/settings"), "host-1", "api, relay", "KAFKA_SASL_PASSWORD", "********", "environment")
	failed = true
	if got := b.open("/console/system"); got.status != 200 || !strings.Contains(string(got.body), "not_ready") ||
		!strings.Contains(string(got.body), logID) {
		t.Errorf("without a dependency the page gives %d", got.status)
	}
}

// TestConsole_TheOverviewShowsEachFigureWithItsScope: items lead to pages of the console, and charts have their tables.
func TestConsole_TheOverviewShowsEachFigureWithItsScope(t *testing.T) {
	w, _, _ := watchedService(t, &state.State{
		ReadAt: time.Now().UTC(),
		Outbox: state.Outbox{Totals: state.OutboxTotals{Unpublished: 12, OldestUnpublishedSeconds: 90},
			Partitions: []state.OutboxPartition{{Head: events.Position{Number: 9007199254740993}}}},
		Lags:        state.Lags{{Consumer: "meterplex-usage-aggregator", Behind: 40, Seconds: 0.25}},
		DeadLetters: state.DeadLetters{Groups: []state.OpenLetters{{Status: "FAILED", Stage: "VALIDATION", Count: 5}}},
		Identity:    &state.Comparison{Holds: false, Accepted: 10, Missing: 3, ComparedAt: time.Now().UTC()},
	})
	w.catalogue()
	b := w.signIn(bootstrap)
	w.same("the console begins with", b.open("/console").header.Get("Location"), "/console/overview")
	page := b.open("/console/overview")
	for !strings.Contains(string(page.body), "9,007,199,254,740,993") {
		page = b.open("/console/overview")
	}
	for _, part := range []answer{page, b.open("/console/overview/live")} {
		b.shows(part, `<a href="/console/dead-letters?stage=VALIDATION&amp;status=FAILED">dead letters failed</a>`,
			`<a href="/console/system">outbox stalled</a>`, `<a href="/console/system">balance check broken</a>`,
			`data-append="chart-rates"`)
	}
	b.shows(page, "9,007,199,254,740,993", "The balance check does not hold", "3 missing", "Accepted per second<strong>0</strong>",
		"Slowest consumer", "0.25 s", `data-live="/console/overview/live?"`, `data-table="chart-rates"`, `<table id="chart-rates"`)
	b.shows(b.open("/console/overview?figure=outbox"), `<table id="chart-outbox"`, "<td>12</td><td>90</td>")
	b.shows(b.open("/console/overview?figure=lag&consumer=meterplex-usage-aggregator"), `<table id="chart-lag-meterplex-usage-aggregator"`,
		"<td>40</td><td>0.25</td>", `data-append="chart-lag-meterplex-usage-aggregator"`)
	b.shows(b.open("/console/overview?figure=lag&consumer=%3Cscript%3E"), "choose a consumer")
}

// TestConsole_TheOverviewSumsUpTheMonth: events, the tenants and features with most of them, and their cost so far. Sums are exact.
func TestConsole_TheOverviewSumsUpTheMonth(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.putPrice("one", `"currency":"EUR","model":"per_unit","microUnits":1000000`)
	w.planOf("basic", `"price":"one"`)
	a, busy := w.newAccount("Quiet"), w.newAccount("Busy")
	b := w.signIn(bootstrap)
	b.shows(b.open("/console/overview"), "No usage of this month is counted yet")
	w.use(a, "a1", 9007199254740991)
	w.use(busy, "b1", 1)
	w.use(busy, "b2", 9007199254740991)
	page := b.open("/console/overview")
	b.shows(page, "Usage in "+now()[:7], "Events counted<strong>3</strong>", "Tenants with usage<strong>2</strong>",
		"18,014,398,509,481,983</td>", "one<strong>18,014,398,509,481,983.00 EUR</strong>")
	if body := string(page.body); strings.Index(body, ">Busy</a>") > strings.Index(body, ">Quiet</a>") {
		t.Errorf("the tenant with most events is not first:\n%s", body)
	}
}
