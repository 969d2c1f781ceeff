package e2e

import (
	"bytes"
	"context"
	"image"
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-rod/rod"
	"github.com/go-rod/rod/lib/proto"
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

// picturesAreThoseOfDocs compares the first screen of the main pages with the pictures of docs/console, or writes these (-update).
func picturesAreThoseOfDocs(t *testing.T, w *consoleWorld, b *rod.Browser) {
	p := newTab(t, b, w.at.url(), true)
	p.signIn(w.operator, "/console/overview")
	if now, noted := p.madeBy(t, b), notedIn(t); now != noted && !*update {
		t.Skipf("SKIPPED the comparison of the pictures of the console: they are made by %s, and this machine has %s", noted, now)
	}
	if time.Now().UTC().Day() == 1 && time.Now().UTC().Hour() == 0 && !*update {
		t.Skip("SKIPPED the comparison of the pictures of the console: the usage of the last half hour is of two months")
	}
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
		made := p.picture()
		file := filepath.Join("../../../docs/console", name+".png")
		if *update {
			p.must(os.WriteFile(file, made, 0o644))
			continue
		}
		golden, err := os.ReadFile(file)
		p.must(err)
		if share := differing(t, golden, made); share > tolerance {
			at := filepath.Join(os.TempDir(), "meterplex-console-"+name+".png")
			p.must(os.WriteFile(at, made, 0o644))
			t.Errorf("%.2f %% of the pixels of docs/console/%s.png differ from those of the page, which are in %s: -update writes the picture again", 100*share, name, at)
		}
	}
}

// tolerance is the share of the pixels of a picture that may differ: less than a button has.
const tolerance = 0.001

// differing returns the share of the pixels of two pictures that differ.
func differing(t *testing.T, a, b []byte) float64 {
	t.Helper()
	var of [2]image.Image
	for i, data := range [][]byte{a, b} {
		var err error
		if of[i], err = png.Decode(bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
	}
	if of[0].Bounds() != of[1].Bounds() {
		return 1
	}
	size, differ := of[0].Bounds(), 0
	for y := size.Min.Y; y < size.Max.Y; y++ {
		for x := size.Min.X; x < size.Max.X; x++ {
			r0, g0, b0, _ := of[0].At(x, y).RGBA()
			r1, g1, b1, _ := of[1].At(x, y).RGBA()
			if max(apart(r0, r1), apart(g0, g1), apart(b0, b1)) > 0x2000 {
				differ++
			}
		}
	}
	return float64(differ) / float64(size.Dx()*size.Dy())
}

func apart(a, b uint32) uint32 { return max(a, b) - min(a, b) }

// madeBy names what draws a page: Chromium's major version, and the font of its text.
func (p *tab) madeBy(t *testing.T, b *rod.Browser) string {
	t.Helper()
	v, err := proto.BrowserGetVersion{}.Call(b)
	p.must(err)
	p.must(proto.DOMEnable{}.Call(p))
	p.must(proto.CSSEnable{}.Call(p))
	root, err := proto.DOMGetDocument{}.Call(p)
	p.must(err)
	h1, err := proto.DOMQuerySelector{NodeID: root.Root.NodeID, Selector: "h1"}.Call(p)
	p.must(err)
	fonts, err := proto.CSSGetPlatformFontsForNode{NodeID: h1.NodeID}.Call(p)
	p.must(err)
	if len(fonts.Fonts) == 0 {
		t.Fatal("the title has no font")
	}
	_, version, _ := strings.Cut(v.Product, "/")
	major, _, _ := strings.Cut(version, ".")
	return "Chromium " + major + " with the font " + fonts.Fonts[0].FamilyName
}

// notedIn reads what has drawn the pictures.
func notedIn(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/console.md")
	if err != nil {
		t.Fatal(err)
	}
	noted := regexp.MustCompile(`Chromium [0-9]+ with the font [A-Za-z ]+`).Find(page)
	if noted == nil {
		t.Fatal("docs/console.md does not note what has drawn its pictures")
	}
	return string(noted)
}
