package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/go-rod/rod"
)

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
	text := p.eval(`(t => (n => [...t.tBodies[0].rows].map(r => r.cells[n].textContent).join("\n"))([...t.tHead.rows[0].cells].findIndex(c => c.textContent === ` + quote(head) + `)))
		(document.querySelector(` + quote(`[aria-label="`+region+`"] table`) + `))`)
	return strings.Split(text, "\n")
}

// figureIsDisputed walks from a figure to its events, whose running sum is the figure, and to the receipt of one of them.
func figureIsDisputed(t *testing.T, w *consoleWorld, b *rod.Browser) {
	x := w.createTenants(w.at, 1)[0]
	w.ingest(w.at, x, "accepted", events("disputed", 60, "api_calls")...) // more than a page
	w.drain()
	p := newTab(t, b, w.at.url(), true)
	p.signIn(w.operator, "/console/usage?tenantId="+x.id)
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

// lettersAreRetried walks from a cause of dead letters to a sample, mends the cause, and retries all of them after a preview.
func lettersAreRetried(t *testing.T, w *consoleWorld, b *rod.Browser) {
	const feature, letters = "export_rows", 5
	x := w.createTenants(w.at, 1)[0]
	w.lettersOf(x, feature, letters)
	failed := func(status string) func(context.Context) (bool, string) {
		return func(context.Context) (bool, string) {
			n := w.count(`SELECT count(*) FROM dead_letter_events WHERE tenant_id = $1 AND status = $2`, x.id, status)
			return n == letters, fmt.Sprint(n)
		}
	}
	within(t, "the events are dead letters", failed("FAILED"))
	p := newTab(t, b, w.at.url(), true)
	p.signIn(w.operator, "/console/dead-letters")
	group := `[...document.querySelectorAll("[aria-label=Groups] tbody tr")].find(r => r.textContent.includes("` + feature + `"))`
	if count := p.eval(group + `.cells[1].textContent`); count != fmt.Sprint(letters) {
		t.Errorf("the group counts %s", count)
	}
	p.follow(group + `.querySelector("a[href*='/console/dead-letters/0']")`)
	if marked := p.eval(`document.querySelector("main mark").textContent`); !strings.Contains(marked, feature) {
		t.Errorf("the member at fault is %q", marked)
	}
	w.put("/features/"+feature, object{"name": "Rows", "type": "METERED", "unit": "row"}) // the cause is mended
	w.put("/plans/export", object{"name": "Export", "entitlements": []object{{"feature": feature, "limit": nil, "limitBehavior": "SOFT", "resetPeriod": "MONTHLY"}}})
	w.patch("/tenants/"+x.id+"/subscriptions/"+x.subscription, object{"plan": "export"})
	p.follow(`[...document.querySelectorAll("main dl a")].find(a => a.textContent === "All of the same cause")`)
	p.follow(group + `.querySelector("a[href*='action=retry']")`)
	if preview := p.eval(`document.querySelector("main [role=status]").textContent`); !strings.Contains(preview, "matches 5 dead letters. 5 of them would be retried") {
		t.Errorf("the preview says %q", preview)
	}
	p.loads(func() error {
		p.eval(`(f => { f.elements.reason.value = "the feature is defined now"; f.requestSubmit(); return "" })(document.querySelector("form[action$='/bulk/retry']"))`)
		return nil
	})
	if html := p.html(); !strings.Contains(html, "Done: Retry these dead letters.") {
		t.Errorf("the result is not displayed:\n%s", html)
	}
	within(t, "the dead letters are resolved", failed("RESOLVED"))
	p.loads(func() error { return p.Reload() })
	if states := p.column("Dead letters", "Status"); len(states) != letters || strings.Join(states, "") != strings.Repeat("RESOLVED", letters) {
		t.Errorf("the dead letters are %v", states)
	}
	w.drain()
	var figures struct{ Data []struct{ Amount int } }
	w.ask(w.operator, http.MethodGet, w.at, "/api/v1/usage/aggregates?tenantId="+x.id+"&feature="+feature, nil, &figures, http.StatusOK)
	if len(figures.Data) != 1 || figures.Data[0].Amount != letters {
		t.Errorf("the figures of the retried events are %+v", figures)
	}
}
