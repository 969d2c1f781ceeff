package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-rod/rod"
)

// fixed makes a page independent of clock, ids and speed: live parts pause, and times, ids, positions, names of instances and figures that depend on time are replaced by
// constants, as are the rows of the tables that charts draw.
const fixed = `(() => {
	document.querySelectorAll("[id$='-pause']:not([hidden])").forEach(b => {
		b.click();
		b.textContent = "Pause";
		document.getElementById(b.id.replace("pause", "state")).textContent = "Live";
	});
	const rules = [
		[/\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z/g, "2026-05-25 10:00:00Z"],
		[/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g, "01a1fcd8-52f3-775d-b143-d2dcc956cbf3"],
		[/\b[0-9a-f]{32}\b/g, "6050a7c3a4dad77126fc49128265be30"],
		[/\S+-\d+-[0-9a-f]{6}\b/g, "meterplex-1-5eb0c1"],
		[/^[0-9a-f]{8}(…[0-9a-f]{4})?$/, "01a1fcd8$1"], [/…[0-9a-f]{4}$/, "…cbf3"],
		[/mp_(live|op)_[A-Za-z0-9_-]+/g, "mp_$1_3f9a"],
		[/\b(3[01]|[12]?\d)-\d+\b(?!-)/g, "17-4711"], [/\b20\d\d-\d\d\b(?!-)/g, "2026-05"], [/· Meterplex \S+ ·/, "· Meterplex ·"]];
	const replaced = text => rules.reduce((t, [from, to]) => t.replace(from, to), text);
	const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (nodes.nextNode()) nodes.currentNode.data = replaced(nodes.currentNode.data);
	document.querySelectorAll("input").forEach(i => i.value = replaced(i.value));
	const figures = {"Accepted this instance": 31, "Never published": 0, "Recorded": 96, "In flight": 0, "Age of the oldest": "0 s"};
	document.querySelectorAll("#overview .figures li").forEach(li => {
		const name = li.firstChild.data + (li.lastChild.data === "this instance" ? " this instance" : "");
		if (name in figures) li.querySelector("strong").textContent = figures[name];
	});
	document.querySelectorAll("[aria-label='Lag of each consumer'] td.number").forEach(c => c.textContent = "0");
	document.querySelectorAll("[aria-label=Freshness] tbody tr").forEach(r => ["96", "0.012", "0.047"].forEach((v, i) => r.cells[i + 1].textContent = v));
	document.querySelectorAll("[aria-label='Items that need attention'] tbody tr").forEach(r => /^(dead letters|push) failed/.test(r.textContent.trim()) || r.remove());
	document.querySelectorAll(".chart").forEach(chart => {
		const body = document.getElementById(chart.dataset.table).tBodies[0], first = body.rows[0], day = chart.dataset.table === "series-table";
		body.replaceChildren(...Array.from({length: day ? 30 : 60}, (_, n) => {
			const row = first.cloneNode(true), at = new Date(Date.UTC(2026, 3, 26) + n * (day ? 86400e3 : 1e3)).toISOString().slice(0, 19) + "Z";
			row.cells[0].innerHTML = "<time datetime='" + at + "'>" + at.replace("T", " ") + "</time>";
			[...row.cells].slice(1).forEach((c, i) => c.textContent = i && !day ? "0" : String((20 + n * 7 % 13) * (day && !i ? 3 : 1)));
			return row;
		}));
	});
	return document.querySelectorAll(".chart").length;
})()`

// pictured lists the pages of the pictures.
func (w *consoleWorld) pictured() map[string]string {
	return map[string]string{
		"overview": "/console/overview", "tenant": "/console/tenants/" + w.tenant.id, "usage": w.usagePage(),
		"rebuild-diff": "/console/rebuilds/" + w.ready + "/diff", "dead-letters": "/console/dead-letters",
	}
}

// writesPictures writes the first screen of the main pages to docs/console (-update). docs/console.md names the browser that drew them.
func writesPictures(t *testing.T, w *consoleWorld, b *rod.Browser) {
	if !*update {
		t.Skip("-update writes the pictures of docs/console")
	}
	p := newTab(t, b, w.at.url(), true)
	p.signIn(w.operator, "/console/overview")
	w.patch("/tenants/"+w.tenant.id, object{"name": "Acme", "metadata": object{"segment": "retail"}})
	defer w.patch("/tenants/"+w.tenant.id, object{"name": "Acme " + canary, "metadata": object{`"><img src=x onerror="window.canary=1">`: canary}})
	within(t, "the overview has read the database", func(ctx context.Context) (bool, string) {
		_, body, err := w.call(ctx, w.operator, http.MethodGet, w.at.url()+"/api/v1/system/overview", nil)
		text := strings.ToLower(string(body))
		return err == nil && strings.Contains(text, "push_failed") && strings.Contains(text, "dead_letters_failed"), text
	})
	p.scheme("light")
	for name, path := range w.pictured() {
		p.open(path)
		if charts := p.eval(fixed); charts != "0" {
			for _, width := range []int{1279, 1280} { // a chart is drawn again in another width
				p.eval(`document.querySelectorAll(".chart").forEach(c => c.replaceChildren())`)
				p.size(width, 800)
				p.becomes("the chart is drawn again", `document.querySelectorAll(".chart canvas").length`, func(now string) bool { return now == charts })
			}
		}
		if name == "usage" { // its figures, below the filters
			p.eval(`document.querySelector(".chart").previousElementSibling.scrollIntoView()`)
		}
		if html := p.html(); strings.Contains(html, w.operator) || strings.Contains(html, w.tenant.key) {
			t.Errorf("%s shows a secret", name)
		}
		p.must(os.WriteFile(filepath.Join("../../../docs/console", name+".png"), p.picture(), 0o644))
	}
}
