package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/go-rod/rod"
)

// walkAFigure walks with scripts through what only a browser shows: the overview that updates itself, the chart of a figure, the figure's events
// and their receipts, an action sent twice, and the tail of the log, until the key is revoked. A proxy stands before the service.
func walkAFigure(t *testing.T, w *consoleWorld, b *rod.Browser) {
	x := w.createTenants(w.at, 1)[0]
	w.ingest(w.at, x, "accepted", events("disputed", 60, "api_calls")...) // more than a page
	w.drain()
	var key struct{ ID, Secret string }
	w.post("/operator-keys", object{"name": "short", "scopes": []string{"admin", "billing", "audit"}}, &key)
	between := newProxy(t, func() string { return strings.TrimPrefix(w.at.url(), "http://") })
	between.start()
	p := newTab(t, b, between.url(), true)
	p.signIn(key.Secret, "/console/overview")
	p.overviewIsLive()
	figureIsDisputed(t, w, p, x)
	tailSurvivesACut(w, p, between, x)
	sentTwiceOnce(t, w, p, x)
	for _, text := range p.complained() {
		if !strings.Contains(text, "net::ERR_") { // of the cut
			t.Error(text)
		}
	}
	p.open("/console/overview")
	p.becomes("the stream is live", overviewState, func(now string) bool { return now == "Live" })
	w.ask(w.operator, http.MethodDelete, w.at, "/api/v1/operator-keys/"+key.ID, nil, nil, http.StatusNoContent)
	p.becomes("the stream ends", overviewState, func(now string) bool { return strings.HasPrefix(now, "Not updated since") })
	p.open("/console/overview")
	if html := p.html(); !strings.Contains(html, `id="key"`) || strings.Contains(html, "Sign out") {
		t.Errorf("a revoked key opens a page:\n%s", html)
	}
}

const overviewState = `document.getElementById("overview-state").textContent`

// overviewIsLive fails unless the overview changes, and a link of its live part keeps the focus, visibly, while the part is swapped.
func (p *tab) overviewIsLive() {
	p.t.Helper()
	p.becomes("the stream is live", overviewState, func(now string) bool { return now == "Live" })
	before := p.eval(`document.getElementById("overview").innerText`)
	p.becomes("the overview changes", `document.getElementById("overview").innerText`, func(now string) bool { return now != before })
	const link = `#overview a[href*="figure=lag"]`
	p.tabTo(link)
	name := p.eval(`document.activeElement.textContent`)
	p.eval(`window.swapped = document.activeElement`)
	p.becomes("the part is swapped", `window.swapped.isConnected`, func(now string) bool { return now == "false" })
	if !p.has(link+":focus-visible") || p.eval(`document.activeElement.textContent`) != name {
		p.t.Errorf("after a swap the focus is on %s", p.eval(`document.activeElement.outerHTML.slice(0, 200)`))
	}
}

// follow clicks the first link that an expression finds.
func (p *tab) follow(link string) {
	p.t.Helper()
	p.loads(func() error { p.eval(`(e => e.click())(` + link + `)`); return nil })
	if problem := p.eval(`document.querySelector(".problem")?.textContent ?? ""`); problem != "" {
		p.t.Fatalf("%s leads to a problem: %s", link, problem)
	}
}

// column returns the cells of a column of the table in a region, without its head.
func (p *tab) column(region, head string) []string {
	p.t.Helper()
	text := p.eval(`(t => (n => [...t.tBodies[0].rows].map(r => r.cells[n].textContent).join("\n"))
		([...t.tHead.rows[0].cells].findIndex(c => c.textContent === ` + quote(head) + `)))
		(document.querySelector(` + quote(`[aria-label="`+region+`"] table`) + `))`)
	return strings.Split(text, "\n")
}

// figureIsDisputed walks from a figure and its chart to its events, whose running sum is the figure, and to the receipt of one of them.
func figureIsDisputed(t *testing.T, w *consoleWorld, p *tab, x *tenant) {
	t.Helper()
	p.open("/console/usage?tenantId=" + x.id + "&feature=api_calls")
	if n := p.eval(`document.querySelectorAll(".chart canvas").length`); n == "0" {
		t.Errorf("no chart is drawn:\n%s", p.html())
	}
	p.open("/console/usage?tenantId=" + x.id)
	figure := fmt.Sprint(x.ledger.sums()["api_calls"].amount)
	if shown := p.column("Figures", "Amount"); len(shown) != 1 || shown[0] != figure {
		t.Fatalf("the figures are %v instead of %s", shown, figure)
	}
	p.follow(`document.querySelector("[aria-label=Figures] td.number a")`)
	position := p.eval(`document.getElementById("position").textContent`)
	if now := p.eval(`document.getElementById("figure").textContent`); now != figure || !strings.Contains(p.eval(`location.search`), "asOfPosition="+position) {
		t.Errorf("the figure is %s at %s, and was %s", now, position, figure)
	}
	var ids, sums []string
	for {
		ids, sums = append(ids, p.column("Events", "Event")...), append(sums, p.column("Events", "Running sum")...)
		if p.eval(`document.querySelector("main a[rel=next]") === null`) == "true" {
			break
		}
		p.follow(`document.querySelector("main a[rel=next]")`)
	}
	if len(ids) != 60 || sums[len(sums)-1] != figure || p.eval(`document.querySelector("main .good").textContent`) != "The running sum is the figure." {
		t.Errorf("%d events, the last running sum is %s instead of %s", len(ids), sums[len(sums)-1], figure)
	}
	p.follow(`document.querySelector("[aria-label=Events] tbody tr:last-child a")`)
	if html := p.html(); !strings.Contains(html, ids[59]) || !strings.Contains(html, "aggregated") || !strings.Contains(html, "<td>counted</td>") {
		t.Errorf("the receipt is not that of %s:\n%s", ids[59], html)
	}
	p.follow(`[...document.querySelectorAll("main dl a")].find(a => a.href.includes("/usage/explain?"))`)
	if now := p.eval(`document.getElementById("figure").textContent`); now != figure {
		t.Errorf("the receipt leads to the figure %s instead of %s", now, figure)
	}
}

// tailSurvivesACut: the proxy cuts the connection of the live tail. The page says since when it is not updated, connects again by itself, and
// shows each event once.
func tailSurvivesACut(w *consoleWorld, p *tab, between *proxy, x *tenant) {
	p.t.Helper()
	p.open("/console/events?" + url.Values{"tenantId": {x.id}, "subject": {"meterplex.usage.event.recorded"}}.Encode())
	const state = `document.getElementById("tail-state").textContent`
	p.becomes("the tail is live", state, func(now string) bool { return now == "Live" })
	shows := func(ids ...string) {
		p.t.Helper()
		p.becomes("the tail shows each event once", `[...document.querySelectorAll("#tail tr")].map(r => r.textContent).join(" ")`, func(text string) bool {
			for _, id := range ids {
				if strings.Count(text, id) != 1 {
					return false
				}
			}
			return true
		})
	}
	w.ingest(w.at, x, "accepted", events("before-cut", 1, "api_calls")...)
	shows("before-cut-0")
	between.set(cuts)
	p.becomes("the tail is cut", state, func(now string) bool { return strings.HasPrefix(now, "Not updated since") })
	w.ingest(w.at, x, "accepted", events("while-cut", 2, "api_calls")...)
	between.set(passes)
	w.ingest(w.at, x, "accepted", events("after-cut", 1, "api_calls")...)
	shows("before-cut-0", "while-cut-0", "while-cut-1", "after-cut-0")
}

// sentTwiceOnce suspends a tenant by a double click, and goes back and reloads.
func sentTwiceOnce(t *testing.T, w *consoleWorld, p *tab, x *tenant) {
	t.Helper()
	p.open("/console/tenants/" + x.id)
	p.loads(func() error {
		p.eval(`(f => { f.closest("details").open = true; f.elements.reason.value = "unpaid"; const b = f.querySelector("button"); b.click(); b.click(); return "" })
			(document.querySelector("form[action$='/suspend']"))`)
		return nil
	})
	if html := p.html(); !strings.Contains(html, "SUSPENDED") {
		t.Errorf("the tenant is not suspended:\n%s", html)
	}
	p.loads(func() error { return p.NavigateBack() })
	p.loads(func() error { return p.Reload() })
	if n := w.count(`SELECT count(*) FROM event_log_rows l WHERE l.tenant_id = $1 AND l.payload ->> 'status' = 'SUSPENDED'`, x.id); n != 1 {
		t.Errorf("%d events of the suspension instead of 1", n)
	}
}
