package e2e

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/go-rod/rod/lib/input"
	"github.com/go-rod/rod/lib/proto"

	service "github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/internal/tier"
)

// TestConsole_InABrowser has the checks that need a browser; the tests of http execute each action. One Chromium and one instance serve
// all, with a proxy between them.
func TestConsole_InABrowser(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	b := startBrowser(t)
	w := newConsoleWorld(t)
	defer func() { w.t = t }()
	for name, check := range map[string]func(*tab, *proxy){
		"every page is accessible in light, dark and at 320 px, and runs no hostile text": w.everyPage,
		"a walk from the live overview to the chart of a figure and the newest events":    w.walk,
		"forms are sent by the keyboard with JavaScript off":                              w.formsByKeyboard,
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			between := newProxy(t, func() string { return strings.TrimPrefix(w.at.url(), "http://") })
			between.start()
			check(newTab(t, b, between.url()), between)
		})
	}
}

// consoleWorld is an installation whose pages hold data, and hostile text.
type consoleWorld struct {
	*deployment
	at     *instance
	tenant *tenant
	letter string // a dead letter
	ready  string // a rebuild with a difference
}

// canary is text that would run, were it not escaped.
const canary = `<script>window.canary=1</script>"><img src=x onerror="window.canary=1">`

func newConsoleWorld(t *testing.T) *consoleWorld {
	t.Helper()
	w := &consoleWorld{deployment: newDeployment(t)}
	w.at = w.serve("")
	w.catalogue(w.at)
	w.tenant = w.createTenants(w.at, 1)[0]
	api := func(method, path string, in any, out any, want int) {
		t.Helper()
		w.ask(w.operator, method, w.at, "/api/v1"+path, in, out, want)
	}
	of := "/tenants/" + w.tenant.id
	api("PUT", "/prices/calls", object{"name": "Calls", "currency": "EUR", "model": "per_unit", "microUnits": 300}, nil, http.StatusCreated)
	hostile := object{`"><img src=x onerror="window.canary=1">`: canary}
	api("PATCH", of, object{"name": "Acme " + canary, "metadata": hostile}, nil, http.StatusOK)
	api("POST", of+"/webhooks", object{"url": "https://example.com/hook", "events": []string{"threshold.crossed"}}, nil, http.StatusCreated)
	api("POST", of+"/thresholds", object{"feature": "calls", "percent": 90}, nil, http.StatusCreated)
	api("POST", "/operator-keys", object{"name": "audit", "scopes": []string{"audit"}}, nil, http.StatusCreated)
	batch := events("event", 40, "api_calls")
	w.ingest(w.at, w.tenant, "accepted", batch...)
	batch[0].Amount += 93
	w.ingest(w.at, w.tenant, "conflict", batch[0])
	w.ask(w.keyOf(w.at, w.tenant, "entitlements:reserve"), http.MethodPost, w.at, "/api/v1/entitlements/calls/reservations",
		object{"reservationId": "job-7", "amount": 5, "ttlSeconds": 3600}, nil, http.StatusCreated)
	w.drain()
	replay := object{"topic": "usage.raw", "fromTime": "2026-01-01T00:00:00Z", "reason": "lost events"}
	api("POST", "/replays", replay, nil, http.StatusAccepted)
	within(t, "the conflict is a dead letter", func(context.Context) (bool, string) {
		var page struct{ Data []struct{ ID string } }
		api("GET", "/dead-letters?tenantId="+w.tenant.id, nil, &page, http.StatusOK)
		if len(page.Data) > 0 {
			w.letter = page.Data[0].ID
		}
		return w.letter != "", fmt.Sprint(page)
	})
	w.storeAsOwner()
	var started rebuild
	api("POST", "/projections/usage_aggregates/rebuilds", object{"reason": "a fix of the fold"}, &started, http.StatusAccepted)
	w.ready = started.ID
	awaitReady(w.deployment, w.at, w.ready)
	return w
}

// storeAsOwner stores a failed push and a waiting saga, which no provider and no runner reach, and makes one live figure wrong.
func (w *consoleWorld) storeAsOwner() {
	w.t.Helper()
	w.run(`INSERT INTO pushes (id, tenant_id, feature, period_key, snapshot, n, amount, provider, customer, event, key, identifier,
		counted_at,
 state, attempts, stored_at, first_attempt_at, attempted_at, last_code, last_error)
 SELECT id, '`+w.tenant.id+`', 'api_calls', to_char(now() - interval '1 month', 'YYYY-MM'), 1, 0, 12, 'stripe', 'cus_NffrFeUfNV2Hib',
 'api_calls', id::text, id::text, now(), 'FAILED', 1, now(), now(), now(), 'resource_missing', 'No such customer'
 FROM gen_random_uuid() id`,
		`INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, deadline_at, missing, created_at)
 VALUES (gen_random_uuid(), 'period_close', '`+w.tenant.id+`', '2026-01/1', 'wait', 'RUNNING', now() + interval '1 year',
 now() + interval '1 year', '{dead_letters}', now())`,
		`UPDATE usage_aggregates SET amount = amount + 7 WHERE tenant_id = '`+w.tenant.id+`' AND feature = 'api_calls'`)
}

//go:embed testdata/axe/axe.min.js
var axe string

// pageOf returns the route of an address among those of pages: the one with the fewest parameters.
func pageOf(routes []string, address string) (best string) {
	path, _, _ := strings.Cut(address, "?")
	parts := strings.Split(path, "/")
	for _, r := range routes {
		wanted := strings.Split(r, "/")
		fits := len(wanted) == len(parts)
		for i := 0; fits && i < len(parts); i++ {
			fits = wanted[i] == parts[i] || strings.HasPrefix(wanted[i], "{")
		}
		if fits && (best == "" || strings.Count(r, "{") < strings.Count(best, "{")) {
			best = r
		}
	}
	return best
}

// everyPage opens each page of the console once, by its links, and checks it.
func (w *consoleWorld) everyPage(p *tab, _ *proxy) {
	var routes, queue []string
	for _, r := range service.ConsoleRoutes() {
		end := r.Path[strings.LastIndex(r.Path, "/")+1:]
		if r.Method != "GET" || !r.Session || end == "live" || strings.Contains(end, ".") {
			continue
		}
		if routes = append(routes, r.Path); !strings.Contains(r.Path, "{") {
			queue = append(queue, r.Path)
		}
	}
	p.open("/console/sign-in")
	p.checkPage("/console/sign-in")
	p.signIn(w.operator, "/console/overview")
	p.complained()
	for _, pages := range []string{
		"usage?feature=api_calls&tenantId=T usage/events?tenantId=T usage/conflicts?tenantId=T events?tenantId=T entitlements?tenantId=T",
		"entitlements/comparison?tenantId=T reservations?tenantId=T adjustments/decision?tenantId=T dead-letters/L rebuilds/R search?q=L",
	} {
		for address := range strings.FieldsSeq(strings.NewReplacer("=T", "="+w.tenant.id, "L", w.letter, "R", w.ready).Replace(pages)) {
			queue = append([]string{"/console/" + address}, queue...)
		}
	}
	seen := map[string]bool{}
	for ; len(queue) > 0; queue = queue[1:] {
		route := pageOf(routes, queue[0])
		if route == "" || seen[route] {
			continue
		}
		seen[route] = true
		p.open(queue[0])
		p.checkPage(queue[0])
		var links []string
		const all = `JSON.stringify([...document.querySelectorAll("a[href^='/console']")].map(a => a.getAttribute("href").split("#")[0]))`
		p.must(json.Unmarshal([]byte(p.eval(all)), &links))
		queue = append(queue, links...)
	}
	for _, route := range routes {
		if !seen[route] {
			p.t.Errorf("no page has a link to %s", route)
		}
	}
}

// checkPage checks a page by axe in light, dark and at 320 px, for errors that the browser logs, for its width and for the canary.
func (p *tab) checkPage(address string) {
	p.t.Helper()
	_, err := proto.RuntimeEvaluate{Expression: axe}.Call(p)
	p.must(err)
	violations := func(where, options string) {
		p.t.Helper()
		if found := p.eval(`axe.run(document, ` + options + `).then(r => r.violations.map(v => v.id + ": " + v.help + "; " +
			v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? "")).join(" | ")).join("\n"))`); found != "" {
			p.t.Errorf("axe, %s %s:\n%s", address, where, found)
		}
	}
	violations("in light", "{resultTypes: ['violations']}")
	p.scheme("dark")
	violations("in dark", "{resultTypes: ['violations'], runOnly: ['cat.color']}")
	p.scheme("light")
	p.size(320, 640)
	violations("at 320 px", "{resultTypes: ['violations']}")
	if wide := p.eval(tooWide); wide != "" {
		p.t.Errorf("%s is wider than 320 px: %s", address, wide)
	}
	p.size(1280, 800)
	if ran := p.eval(`String(window.canary)`); ran != "undefined" {
		p.t.Errorf("%s runs text as a script", address)
	}
	for _, text := range p.complained() {
		p.t.Errorf("%s: %s", address, text)
	}
}

// tooWide names the elements that make the page scroll sideways.
const tooWide = `document.documentElement.scrollWidth <= innerWidth ? "" : document.documentElement.scrollWidth + " px: " +
	[...document.querySelectorAll("body *")]
	.filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.parentElement.closest(".scroll"))
	.slice(0, 4).map(e => e.outerHTML.slice(0, 120)).join(" | ")`

// formsByKeyboard sends a form of each kind by the keyboard alone, with JavaScript off. Its page is then loaded again: each action is
// executed once.
func (w *consoleWorld) formsByKeyboard(p *tab, _ *proxy) {
	p.must(proto.EmulationSetScriptExecutionDisabled{Value: true}.Call(p))
	type field struct {
		selector, text string
		key            input.Key // 0: text is written
	}
	x := w.createTenants(w.at, 1)[0]
	tenant := "/console/tenants/" + x.id
	p.signIn(w.operator, "/console/overview")
	for n, a := range []struct {
		page, action string
		fields       []field
	}{
		{"/console/new/feature", "/console/new/feature", []field{
			{"[name=lookupKey]", "by_keyboard", 0}, {"[name=name]", "Feature", 0}, {"[name=unit]", "each", 0}}},
		{tenant + "/change", tenant + "/change", []field{{"[name=name]", "Renamed", 0}}},
		{tenant, "/subscriptions/" + x.subscription + "/set-status", []field{{"[name=status]", "", input.ArrowDown}}},
		{tenant, tenant + "/keys", []field{{"[name=name]", "key", 0}, {`[value="usage:read"]`, "", input.Space}}}, // shows a secret
		{tenant, tenant + "/suspend", nil},
	} {
		reason, form := fmt.Sprint("by keyboard ", n), `form[action$="`+a.action+`"]`
		p.open(a.page)
		p.press(input.Tab, input.Enter) // to the content
		if summary := "details:has(> " + form + ") > summary"; p.has(summary) {
			p.walkTo(summary)
			p.press(input.Enter)
		}
		for _, f := range append(a.fields, field{"[name=reason]", reason, 0}) {
			if p.walkTo(form + " " + f.selector); f.key != 0 {
				p.press(f.key)
			} else {
				p.write(f.text)
			}
		}
		p.walkTo(form + " button")
		p.loads(func() error { return p.Keyboard.Type([]input.Key{input.Enter, input.Space}[n%2]) })
		html := p.html()
		if done := strings.Contains(html, "Done: ") || strings.Contains(html, "shown once"); !done ||
			strings.Contains(html, `class="problem"`) {
			p.t.Errorf("%s does not show its result:\n%s", a.action, html)
		}
		p.loads(func() error { return proto.PageReload{}.Call(p) })
		if made := w.count(`SELECT count(*) FROM event_log_rows l JOIN log_origins o ON o.id = l.origin
 WHERE l.payload ->> 'reason' = $1 AND o.via = 'console' AND o.actor_type = 'api_key'`, reason); made != 1 {
			p.t.Errorf("%s has made %d events", a.action, made)
		}
		for _, text := range p.complained() {
			p.t.Errorf("%s: %s", a.action, text)
		}
	}
}

// walk visits the parts of the console that need scripts: the overview that updates itself, the chart of a figure, and the newest events of
// the log, until the key is revoked.
func (w *consoleWorld) walk(p *tab, between *proxy) {
	x := w.createTenants(w.at, 1)[0]
	w.ingest(w.at, x, "accepted", events("drawn", 60, "api_calls")...)
	w.drain()
	var key struct{ ID, Secret string }
	short := object{"name": "short", "scopes": []string{"admin", "billing", "audit"}}
	w.ask(w.operator, http.MethodPost, w.at, "/api/v1/operator-keys", short, &key, http.StatusCreated)
	p.signIn(key.Secret, "/console/overview")
	p.overviewIsLive()
	w.figureIsDrawn(p, x)
	w.newestSurviveACut(p, between, x)
	for _, text := range p.complained() {
		if !strings.Contains(text, "net::ERR_") { // of the cut
			p.t.Error(text)
		}
	}
	p.open("/console/overview")
	p.becomes("the overview is live", liveState, func(now string) bool { return now == "Live" })
	w.ask(w.operator, http.MethodDelete, w.at, "/api/v1/operator-keys/"+key.ID, nil, nil, http.StatusNoContent)
	p.becomes("the live part ends", liveState, func(now string) bool { return strings.HasPrefix(now, "Signed out. Not updated since") })
	p.open("/console/overview")
	if html := p.html(); !strings.Contains(html, `id="key"`) || strings.Contains(html, "Sign out") {
		p.t.Errorf("a revoked key opens a page:\n%s", html)
	}
}

const liveState = `document.getElementById("live-state").textContent`

// overviewIsLive fails unless the overview changes, and a link of its live part keeps the focus, visibly, while the part is swapped.
func (p *tab) overviewIsLive() {
	p.t.Helper()
	p.becomes("the overview is live", liveState, func(now string) bool { return now == "Live" })
	before := p.eval(`document.getElementById("live").innerText`)
	p.becomes("the overview changes", `document.getElementById("live").innerText`, func(now string) bool { return now != before })
	const link = `#live a[href*="figure=lag"]`
	p.walkTo(link)
	if outline := p.eval(`getComputedStyle(document.activeElement).outlineStyle`); outline == "none" {
		p.t.Errorf("the focus on %s cannot be seen", link)
	}
	name := p.eval(`document.activeElement.textContent`)
	p.eval(`window.swapped = document.activeElement`)
	p.becomes("the part is swapped", `window.swapped.isConnected`, func(now string) bool { return now == "false" })
	if !p.has(link+":focus-visible") || p.eval(`document.activeElement.textContent`) != name {
		p.t.Errorf("after a swap the focus is on %s", p.eval(`document.activeElement.outerHTML.slice(0, 200)`))
	}
}

// figureIsDrawn fails unless the figure of a tenant has its chart.
func (w *consoleWorld) figureIsDrawn(p *tab, x *tenant) {
	p.t.Helper()
	p.open("/console/usage?tenantId=" + x.id + "&feature=api_calls")
	if n := p.eval(`document.querySelectorAll(".chart canvas").length`); n == "0" {
		p.t.Errorf("no chart is drawn:\n%s", p.html())
	}
}

// newestSurviveACut: the proxy cuts the connections of the page of events. It says since when it is not updated, and why, and goes on by
// itself. While the page is paused, it does not change.
func (w *consoleWorld) newestSurviveACut(p *tab, between *proxy, x *tenant) {
	p.t.Helper()
	p.open("/console/events?" + url.Values{"tenantId": {x.id}, "subject": {"meterplex.usage.event.recorded"}}.Encode())
	state := func(condition, begin string) {
		p.t.Helper()
		p.becomes(condition, liveState, func(now string) bool { return strings.HasPrefix(now, begin) })
	}
	shows := func(ids ...string) {
		p.t.Helper()
		const rows = `[...document.querySelectorAll("#live tr")].map(r => r.textContent).join(" ")`
		p.becomes("each event is shown once", rows, func(text string) bool {
			return !slices.ContainsFunc(ids, func(id string) bool { return strings.Count(text, id) != 1 })
		})
	}
	state("the page is live", "Live")
	w.ingest(w.at, x, "accepted", events("before-cut", 1, "api_calls")...)
	shows("before-cut-0")
	between.set(cuts)
	state("the page is cut off", "Not updated since")
	w.ingest(w.at, x, "accepted", events("while-cut", 2, "api_calls")...)
	between.set(passes)
	shows("before-cut-0", "while-cut-0", "while-cut-1")
	state("the page is live again", "Live")
	p.eval(`document.getElementById("live-pause").click()`)
	state("the page is paused", "Paused since")
	w.ingest(w.at, x, "accepted", events("while-paused", 1, "api_calls")...)
	p.eval(`new Promise(done => setTimeout(done, 3000))`)
	if shown := p.eval(`document.getElementById("live").textContent`); strings.Contains(shown, "while-paused") {
		p.t.Error("a paused page goes on")
	}
	p.eval(`document.getElementById("live-pause").click()`)
	shows("while-paused-0")
}
