package e2e

import (
	_ "embed"
	"encoding/json"
	"strings"

	"github.com/go-rod/rod/lib/proto"

	service "github.com/meterplex/meterplex/http"
)

//go:embed testdata/axe/axe.min.js
var axe string

// patternsOf lists the routes that a link can open.
func patternsOf() (patterns []string) {
	for _, r := range service.ConsoleRoutes() {
		if r.Method == "GET" && r.Session {
			patterns = append(patterns, r.Path)
		}
	}
	return patterns
}

// isPage reports whether a route is a page's, not a stream's or a file's.
func isPage(pattern string) bool {
	end := pattern[strings.LastIndex(pattern, "/")+1:]
	return end != "stream" && !strings.Contains(end, ".")
}

// patternOf returns the route of an address: the one with the fewest parameters.
func patternOf(patterns []string, address string) (best string) {
	path, _, _ := strings.Cut(address, "?")
	parts := strings.Split(path, "/")
	for _, p := range patterns {
		wanted := strings.Split(p, "/")
		fits := len(wanted) == len(parts)
		for i := 0; fits && i < len(parts); i++ {
			fits = wanted[i] == parts[i] || strings.HasPrefix(wanted[i], "{")
		}
		if fits && (best == "" || strings.Count(p, "{") < strings.Count(best, "{")) {
			best = p
		}
	}
	return best
}

// everyPage opens each page of the console once, by its links, and checks it.
func (w *consoleWorld) everyPage(p *tab, check func(address string)) (pages int) {
	p.t.Helper()
	patterns, seen := patternsOf(), map[string]bool{}
	queue := []string{w.usagePage(), "/console/dead-letters/" + w.letter, "/console/rebuilds/" + w.ready, "/console/search?q=" + w.letter}
	for _, of := range []string{"usage/events", "usage/conflicts", "events", "entitlements", "entitlements/comparison", "reservations", "adjustments/decision"} {
		queue = append(queue, "/console/"+of+"?tenantId="+w.tenant.id)
	}
	for _, pattern := range patterns {
		if isPage(pattern) && !strings.Contains(pattern, "{") {
			queue = append(queue, pattern)
		}
	}
	for len(queue) > 0 {
		address := queue[0]
		queue = queue[1:]
		pattern := patternOf(patterns, address)
		if pattern == "" || seen[pattern] || !isPage(pattern) {
			continue
		}
		seen[pattern] = true
		p.open(address)
		check(address)
		pages++
		var links []string
		p.must(json.Unmarshal([]byte(p.eval(`JSON.stringify([...document.querySelectorAll("a[href^='/console']")].map(a => a.getAttribute("href").split("#")[0]))`)), &links))
		queue = append(queue, links...)
	}
	for _, pattern := range patterns {
		if isPage(pattern) && !seen[pattern] {
			p.t.Errorf("no page has a link to %s", pattern)
		}
	}
	return pages
}

// checkPage checks a page by axe in light, dark and at 320 px, for errors that the browser logs, for its width and for the canary.
func (p *tab) checkPage(address string) {
	p.t.Helper()
	p.must(evaluate(p, axe))
	p.checkByAxe(address+" in light", "{resultTypes: ['violations']}")
	p.scheme("dark")
	p.checkByAxe(address+" in dark", "{resultTypes: ['violations'], runOnly: ['cat.color']}")
	p.scheme("light")
	p.size(320, 640)
	p.checkByAxe(address+" at 320 px", "{resultTypes: ['violations']}")
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
	[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.parentElement.closest(".scroll"))
	.slice(0, 4).map(e => e.outerHTML.slice(0, 120)).join(" | ")`

func evaluate(p *tab, script string) error {
	_, err := proto.RuntimeEvaluate{Expression: script}.Call(p)
	return err
}

func (p *tab) checkByAxe(where, options string) {
	p.t.Helper()
	if found := p.violations(options); found != "" {
		p.t.Errorf("axe, %s:\n%s", where, found)
	}
}

// violations runs axe on the page.
func (p *tab) violations(options string) string {
	p.t.Helper()
	return p.eval(`axe.run(document, ` + options + `).then(r => r.violations.map(v => v.id + ": " + v.help + "; " +
		v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? "")).join(" | ")).join("\n"))`)
}
