package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-rod/rod"
	"github.com/go-rod/rod/lib/input"

	"github.com/meterplex/meterplex/internal/tier"
)

// TestConsole_InABrowser: one Chromium and one instance for all. The tests of http hold each action against the database; here are those that only a
// browser can hold.
func TestConsole_InABrowser(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	b, parent := startBrowser(t), t
	w := newConsoleWorld(t)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, w *consoleWorld, b *rod.Browser)
	}{
		{"pictures", picturesAreThoseOfDocs}, // first: the others change the world
		{"every page is accessible in light, dark and at 320 px, and runs no hostile text", everyPageIsAccessible},
		{"the commands of each page return what it shows", equivalentsRun},
		{"pages can be read with JavaScript off", worksWithoutScripts},
		{"an action that is sent again has one event", sentAgainOnce},
		{"the usage page draws a chart beside its table", usageIsDrawn},
		{"a fix is promoted from its difference, and rolled back", fixIsPromoted},
		{"each action is executed once by the keyboard with JavaScript off, and sent again without effect", actionsByKeyboard(false)},
		{"actions of each kind of form are executed once by the keyboard with scripts", actionsByKeyboard(true)},
		{"a disputed figure is its events, and each has its receipt", figureIsDisputed},
		{"dead letters are retried by their cause once it is mended", lettersAreRetried},
		{"random figures are their events, under traffic and a promotion", figuresAreTheirEvents},
		{"the live tail survives a proxy that cuts it", tailSurvivesACut},
		{"the overview is live until its key is revoked", overviewIsLive},
	} {
		t.Run(test.name, func(t *testing.T) {
			began := time.Now()
			w.t = t
			defer func() { w.t = parent }()
			test.run(t, w, b)
			t.Logf("took %s", time.Since(began).Round(time.Millisecond))
		})
	}
}

func everyPageIsAccessible(t *testing.T, w *consoleWorld, b *rod.Browser) {
	p := newTab(t, b, w.at.url(), true)
	var times pageTimes
	p.open("/console/sign-in")
	times.add(p, "/console/sign-in, with an empty cache")
	p.checkPage("/console/sign-in")
	p.signIn(w.operator, "/console/overview")
	p.complained()
	pages := w.everyPage(p, func(address string) {
		times.add(p, address)
		w.shown.collect(p)
		p.checkPage(address)
	})
	p.eval(`document.querySelector("main").append(document.createElement("input"))`)
	if found := p.violations("{}"); !strings.Contains(found, "label") {
		t.Errorf("axe does not see an input without a label: %q", found)
	}
	t.Logf("%d pages", pages+1)
	times.log(t)
}

// tabTo presses the tabulator until the focus is on an element.
func (p *tab) tabTo(selector string) {
	p.t.Helper()
	for range 200 {
		if p.eval(`!!document.activeElement?.matches(`+quote(selector)+`)`) == "true" {
			if outline := p.eval(`getComputedStyle(document.activeElement).outlineStyle`); outline == "none" {
				p.t.Errorf("the focus on %s cannot be seen", selector)
			}
			return
		}
		p.press(input.Tab)
	}
	p.t.Fatalf("the tabulator does not reach %s", selector)
}

func quote(text string) string { return jsonText(text) }

func worksWithoutScripts(t *testing.T, w *consoleWorld, b *rod.Browser) {
	p := newTab(t, b, w.at.url(), false)
	p.signIn(w.operator, "/console/overview")
	for path, text := range map[string]string{
		"/console/overview": "Reload", w.usagePage(): "api_calls", "/console/dead-letters/" + w.letter: "Retry", "/console/rebuilds/" + w.ready + "/diff": "api_calls",
		"/console/tenants/" + w.tenant.id: "Suspend",
	} {
		p.open(path)
		if html := p.html(); !strings.Contains(html, text) || strings.Contains(html, `class="problem"`) {
			t.Errorf("%s does not show %q:\n%s", path, text, html)
		}
	}
}

// sentAgainOnce suspends a tenant by a double click, from a second window, and after going back and reloading.
func sentAgainOnce(t *testing.T, w *consoleWorld, b *rod.Browser) {
	x := w.createTenants(w.at, 1)[0]
	page := "/console/tenants/" + x.id
	p := newTab(t, b, w.at.url(), true)
	p.signIn(w.operator, page)
	other := p.another()
	other.open(page)
	const fill = `(() => { const f = document.querySelector("form[action$='/suspend']"); f.closest("details").open = true; f.elements.reason.value = "unpaid"; return f })()`
	p.loads(func() error {
		p.eval(`((f, b) => { b.click(); b.click(); return "" })(` + fill + `, ` + fill + `.querySelector("button"))`)
		return nil
	})
	if html := p.html(); !strings.Contains(html, "SUSPENDED") {
		t.Errorf("the tenant is not suspended:\n%s", html)
	}
	other.loads(func() error { other.eval(fill + `.requestSubmit()`); return nil })
	p.loads(func() error { return p.NavigateBack() })
	p.loads(func() error { return p.Reload() })
	if n := w.count(`SELECT count(*) FROM event_log_rows l WHERE l.tenant_id = $1 AND l.payload ->> 'status' = 'SUSPENDED'`, x.id); n != 1 {
		t.Errorf("%d events of the suspension instead of 1", n)
	}
}

// act fills and sends the form of an action.
func (p *tab) act(action, reason string) {
	p.t.Helper()
	p.loads(func() error {
		p.eval(`(f => { f.closest("details").open = true; f.elements.reason.value = ` + quote(reason) + `; f.requestSubmit(); return "" })
			(document.querySelector("form[action$='/` + action + `']"))`)
		return nil
	})
}

// fixIsPromoted walks from a rebuild to its difference, to the promotion, and back.
func fixIsPromoted(t *testing.T, w *consoleWorld, b *rod.Browser) {
	page := "/console/rebuilds/" + w.ready
	p := newTab(t, b, w.at.url(), true)
	p.signIn(w.operator, page)
	p.loads(func() error { p.eval(`document.querySelector("main a[href$='/diff']").click()`); return nil })
	if html := p.html(); !strings.Contains(html, "-7") {
		t.Errorf("the difference is not displayed:\n%s", html)
	}
	for _, to := range []struct{ action, state string }{{"promote", "PROMOTED"}, {"rollback", "ROLLED_BACK"}} {
		p.act(to.action, "a walk: "+to.action)
		within(t, "the rebuild is "+to.state, func(context.Context) (bool, string) {
			r := w.rebuild(w.at, w.ready)
			return r.State == to.state, r.State
		})
		p.open(page)
		if html := p.html(); !strings.Contains(html, to.state) {
			t.Errorf("the page does not show %s:\n%s", to.state, html)
		}
	}
}

func usageIsDrawn(t *testing.T, w *consoleWorld, b *rod.Browser) {
	p := newTab(t, b, w.at.url(), true)
	p.signIn(w.operator, "/console/overview")
	p.open(w.usagePage())
	if n := p.eval(`document.querySelectorAll(".chart canvas").length + " " + document.querySelectorAll(".chart ~ * table tbody tr, .chart ~ table tbody tr").length`); strings.HasPrefix(n, "0 ") || strings.HasSuffix(n, " 0") {
		t.Errorf("charts and rows: %s\n%s", n, p.html())
	}
	for _, text := range p.complained() {
		t.Error(text)
	}
}

func overviewIsLive(t *testing.T, w *consoleWorld, b *rod.Browser) {
	var key struct{ ID, Secret string }
	w.post("/operator-keys", object{"name": "short", "scopes": []string{"admin", "billing", "audit"}}, &key)
	p := newTab(t, b, w.at.url(), true)
	p.signIn(key.Secret, "/console/overview")
	p.becomes("the stream is live", `document.getElementById("overview-state").textContent`, func(now string) bool { return now == "Live" })
	before := p.eval(`document.getElementById("overview").innerText`)
	p.becomes("the overview changes", `document.getElementById("overview").innerText`, func(now string) bool { return now != before })
	p.focusStays()
	w.ask(w.operator, http.MethodDelete, w.at, "/api/v1/operator-keys/"+key.ID, nil, nil, http.StatusNoContent)
	p.becomes("the stream ends", `document.getElementById("overview-state").textContent`, func(now string) bool { return strings.HasPrefix(now, "Not updated since") })
	p.open("/console/overview")
	if html := p.html(); !strings.Contains(html, `id="key"`) || strings.Contains(html, "Sign out") {
		t.Errorf("a revoked key opens a page:\n%s", html)
	}
}

// focusStays fails unless a link of the live part keeps the focus, visibly, while the part is swapped.
func (p *tab) focusStays() {
	p.t.Helper()
	const link = `#overview a[href*="figure=lag"]`
	p.tabTo(link)
	name := p.eval(`document.activeElement.textContent`)
	p.eval(`window.swapped = document.activeElement`)
	p.becomes("the part is swapped", `window.swapped.isConnected`, func(now string) bool { return now == "false" })
	if !p.has(link+":focus-visible") || p.eval(`document.activeElement.textContent`) != name {
		p.t.Errorf("after a swap the focus is on %s", p.eval(`document.activeElement.outerHTML.slice(0, 200)`))
	}
}

// becomes waits until an expression has a value.
func (p *tab) becomes(condition, expression string, holds func(now string) bool) {
	p.t.Helper()
	within(p.t, condition, func(context.Context) (bool, string) {
		now := p.eval(expression)
		return holds(now), fmt.Sprintf("%.300s", now)
	})
}
