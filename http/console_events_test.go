package http_test

import (
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
)

// The pages of the log show all events that match, each with its envelope as the API answers it, and its lineage.
func TestConsole_EventsShowTheLog(t *testing.T) {
	w, a := newServiceWithAccount(t)
	other := w.newAccount("B")
	w.ingest(a, batch(event("one", map[string]any{"metadata": map[string]any{"region": `"><script>alert(1)</script>`}}), event("two", map[string]any{"amount": 1<<53 - 1, "feature": "storage"})))
	w.ingest(other, batch(event("other", nil)))
	w.fold()
	logged := w.firstOf(a)
	raw := w.do(call{method: "GET", path: "/api/v1/events/" + logged, key: bootstrap})
	for name, b := range map[string]*browser{"tenantId=" + a.id: w.signIn(bootstrap), "": w.signIn(a.key)} {
		page := b.open("/console/events?subject=meterplex.usage.event.recorded&" + name)
		b.shows(page, `data-stream="/console/events/stream?`, `id="tail-pause"`, "&#34;one&#34;", "9007199254740991")
		if strings.Contains(string(page.body), "<script>alert") || strings.Contains(string(page.body), "&#34;other&#34;") {
			t.Errorf("the page is not escaped, or shows another tenant's event:\n%s", page.body)
		}
		if list := cells(page); len(list) != 4 { // the newest, and the list
			t.Errorf("%d rows: %q", len(list), list)
		}
		file := b.open(b.link(page, "/console/events/export.ndjson?"))
		if api := w.do(call{method: "GET", path: "/api/v1/events/export?subject=meterplex.usage.event.recorded&tenantId=" + a.id, key: bootstrap}); string(api.body) != string(file.body) ||
			strings.Count(string(api.body), "\n") != 2 || file.header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("the file %v\n%s\ndiffers from the API's\n%s", file.header, file.body, api.body)
		}
		envelope := b.open("/console/events/" + logged + "?" + name)
		b.shows(envelope, "meterplex.usage.event.recorded")
		if shown := regexp.MustCompile(`(?s)aria-label="Envelope">(.*?)</pre>`).FindSubmatch(envelope.body); html.UnescapeString(string(shown[1])) != strings.TrimSpace(string(raw.body)) {
			t.Errorf("the envelope\n%s\ndiffers from the API's\n%s", shown[1], raw.body)
		}
		lineage := b.open(b.link(envelope, "/console/events/"+w.positionOf(logged)+"/lineage"))
		b.shows(lineage, `<ul class="tree">`, "event validated", "event recorded")
		b.shows(b.open(b.link(envelope, "/console/usage/events/one")), "aggregated")
	}
	b := w.signIn(bootstrap)
	for path, code := range map[string]string{"?subject=no": "subject_unknown", "?stream=usage/one": "parameter_missing", "?correlationId=x": "parameter_invalid", "?from=x": "parameter_invalid", "?after=x": "position_invalid",
		"?cursor=x": "cursor_invalid", "?colour=red": "unknown_parameter", "/x": "event_not_found", "/999-1": "event_not_found", "/" + logged + "/lineage?skip=x": "parameter_invalid"} {
		page := b.open("/console/events" + path)
		if page.status != 400 && page.status != 404 || !strings.Contains(string(page.body), "#problem-") {
			t.Errorf("%s gives %d instead of %s:\n%s", path, page.status, code, page.body)
		}
	}
}

func (w *testService) positionOf(logged string) string {
	w.Helper()
	return w.want(200, call{method: "GET", path: "/api/v1/events/" + logged, key: bootstrap})["position"].(string)
}

// The live part of the page goes on where the page ends: it shows each event once, as a row.
func TestConsole_TheTailOfTheLogGoesOn(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(event("before", nil)))
	for _, b := range []*browser{w.signIn(bootstrap), w.signIn(a.key)} {
		for _, filter := range []string{"tenantId=" + a.id, "tenantId=" + a.id + "&subject=meterplex.usage.event.recorded", "tenantId=" + a.id + "&subject=meterplex.billing."} {
			page := b.open("/console/events?" + filter)
			b.shows(page)
			at := html.UnescapeString(regexp.MustCompile(`data-stream="([^"]*)"`).FindStringSubmatch(string(page.body))[1])
			id := newID().String()
			w.ingest(a, batch(event(id, nil)))
			l := b.follows(at)
			if strings.Contains(filter, "billing") {
				continue
			}
			for row, ok := "", true; !strings.Contains(row, id); {
				if row, ok = l.next(); !ok || strings.Contains(row, "before") || !strings.HasPrefix(row, "<tr><td><a href=") {
					t.Fatalf("the stream ended, or repeats an event of the page: %s", row)
				}
			}
		}
	}
}

// effects appends events that another caused: each of them, or as a chain.
func (w *testService) effects(a *account, cause string, n int, chain bool) {
	w.Helper()
	by := uuid.MustParse(cause)
	var list []events.Pending
	for i := range n {
		id := fmt.Sprint("effect-", chain, "-", i)
		e := events.Pending{EventID: newID(), Subject: events.UsageRecorded, TenantID: uuid.MustParse(a.id), DedupeKey: events.KeyUsage(id), CausationID: by, Actor: events.Actor{Type: "system", ID: "test"},
			Residency: events.ResidencyUnspecified, OccurredAt: time.Now(), Payload: json.RawMessage(`{"amount":1,"eventId":"` + id + `","feature":"api_calls","timestamp":"` + now() + `","type":"usage"}`), Counts: events.Counts{Accepted: 1}}
		if list = append(list, e); chain {
			by = e.EventID
		}
	}
	w.must(pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		_, err := w.log.AppendTx(w.Context(), tx, list)
		return err
	}))
}

// A lineage with as many effects as the API gives comes in pages of at most 200 KB, which show each event once.
func TestConsole_ALargeLineageComesInPages(t *testing.T) {
	tier.AtSize(t)
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(event("root", nil)))
	logged := w.firstOf(a)
	w.effects(a, logged, 300, true)
	w.effects(a, logged, 900, false)
	b := w.signIn(bootstrap)
	nodes := w.want(200, call{method: "GET", path: "/api/v1/events/" + logged + "/lineage?tenantId=" + a.id, key: bootstrap})["nodes"].([]any)
	var shown []string
	for at, pages := "/console/events/"+logged+"/lineage?tenantId="+a.id, 0; at != ""; pages++ {
		page := b.open(at)
		b.shows(page, "effect of", "Events ", "The lineage has more events than this")
		if len(page.body) > 200<<10 {
			t.Errorf("the page has %d bytes", len(page.body))
		}
		for _, l := range regexp.MustCompile(`<code>([0-9]+-[0-9]+)</code></a> `).FindAllStringSubmatch(string(page.body), -1) {
			shown = append(shown, l[1])
		}
		at = b.next(page)
		if pages > 20 {
			t.Fatal("the pages do not end")
		}
	}
	slices.Sort(shown)
	if len(shown) != len(nodes) || len(slices.Compact(shown)) != len(nodes) || len(nodes) != 1000 {
		t.Errorf("%d events are shown, the API has %d", len(shown), len(nodes))
	}
}

// The search leads to the one result, lists several, and is clear about the rest.
func TestConsole_SearchFindsWhatTheKeyMayOpen(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("Äcme <b>")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"externalIds":["crm-17"]}`})
	twins := []string{w.newAccount("Twin_1").id, w.newAccount("Twin_2").id}
	w.ingest(a, batch(event("order/17", nil)))
	w.fold()
	logged := w.firstOf(a)
	envelope := w.want(200, call{method: "GET", path: "/api/v1/events/" + logged, key: bootstrap})
	position, trace := envelope["position"].(string), envelope["correlationId"].(string)
	operator, tenant := w.signIn(bootstrap), w.signIn(a.key)
	for _, c := range []struct {
		b         *browser
		query, to string
	}{
		{operator, "q=" + a.id, "/console/tenants/" + a.id},
		{operator, "q=crm-17", "/console/tenants/" + a.id},
		{operator, "q=CME+%3Cb%3E", "/console/tenants/" + a.id},
		{operator, "q=+" + position + "+", "/console/events/" + position},
		{operator, "q=" + logged, "/console/events/" + position},
		{operator, "q=" + trace, "/console/events?correlationId=" + trace},
		{operator, "q=" + strings.ReplaceAll(trace, "-", ""), "/console/events?correlationId=" + trace},
		{operator, "q=order/17&tenantId=" + a.id, "/console/usage/events/order%2F17?tenantId=" + a.id},
		{tenant, "q=order/17", "/console/usage/events/order%2F17"},
		{tenant, "q=" + position, "/console/events/" + position},
		{tenant, "q=" + trace, "/console/events?correlationId=" + trace},
	} {
		got := c.b.open("/console/search?" + c.query)
		if got.status != 303 || got.header.Get("Location") != c.to {
			t.Errorf("%s leads to %d %s instead of %s:\n%s", c.query, got.status, got.header.Get("Location"), c.to, got.body)
			continue
		}
		c.b.shows(c.b.follow(got))
	}
	for _, b := range []*browser{operator, tenant} {
		for _, q := range []string{"", "%", "_", "' OR 1=1 --", "<script>alert(1)</script>", "17-9999999", newID().String(), "order_17", "\u202e"} {
			page := b.open("/console/search?q=" + url.QueryEscape(q))
			b.shows(page, "Search")
			if strings.Contains(string(page.body), "<script>alert") {
				t.Errorf("%q is not escaped:\n%s", q, page.body)
			}
		}
		b.refuses("/console/search?q="+strings.Repeat("x", 10_000), 400, "parameter_invalid")
		b.refuses("/console/search?q=%ff", 400, "parameter_invalid")
		b.refuses("/console/search?q=%zz", 400, "malformed_query")
		if page := b.open("/console/search?q=%00"); page.status >= 500 {
			t.Errorf("a zero byte gives %d", page.status)
		}
	}
	b := &browser{testService: w}
	for _, of := range []*browser{operator, tenant, b} { // also if nobody is signed in
		for _, query := range []string{"q=" + a.key, "q=" + bootstrap, "q=x+" + a.key + "+y", "q=" + strings.ToUpper(a.key[:8]) + a.key[8:], "tenantId=" + a.key, "q=a&q=" + a.key} {
			got := of.open("/console/search?" + query)
			if got.status != 303 || got.header.Get("Location") != "/console/search?secret=removed" || strings.Contains(string(got.body), a.key[10:]) {
				t.Errorf("a secret leads to %d %v\n%s", got.status, got.header, got.body)
			}
		}
	}
	operator.shows(operator.open("/console/search?q=twin_"), "Twin_1", "/console/tenants/"+twins[0], "/console/tenants/"+twins[1])
	tenant.shows(tenant.open("/console/search?q=twin_"), "Nothing was found")
	operator.shows(operator.open("/console/search?secret=removed"), "rotate it")
}
