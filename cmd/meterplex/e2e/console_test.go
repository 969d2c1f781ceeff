package e2e

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/go-rod/rod"
	"github.com/go-rod/rod/lib/input"

	"github.com/meterplex/meterplex/internal/tier"
)

var update = flag.Bool("update", false, "write the pictures of the console")

// TestConsole_InABrowser: one Chromium and one instance for all. The tests of http check each action against the database; here are the checks
// that need a browser.
func TestConsole_InABrowser(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	b, parent := startBrowser(t), t
	w := newConsoleWorld(t)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, w *consoleWorld, b *rod.Browser)
	}{
		{"pictures", writesPictures}, // first: the others change the world
		{"every page is accessible in light, dark and at 320 px, and runs no hostile text", everyPageIsAccessible},
		{"each action is executed once by the keyboard with JavaScript off, and sent again without effect", actionsByKeyboard},
		{"a walk from the live overview to a disputed figure, its events and the live tail", walkAFigure},
	} {
		t.Run(test.name, func(t *testing.T) {
			w.t = t
			defer func() { w.t = parent }()
			test.run(t, w, b)
		})
	}
}

func everyPageIsAccessible(t *testing.T, w *consoleWorld, b *rod.Browser) {
	p := newTab(t, b, w.at.url(), true)
	p.open("/console/sign-in")
	p.checkPage("/console/sign-in")
	p.signIn(w.operator, "/console/overview")
	p.complained()
	pages := w.everyPage(p, p.checkPage)
	p.eval(`document.querySelector("main").append(document.createElement("input"))`)
	if found := p.violations("{}"); !strings.Contains(found, "label") {
		t.Errorf("axe does not see an input without a label: %q", found)
	}
	t.Logf("%d pages", pages+1)
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

// becomes waits until an expression has a value.
func (p *tab) becomes(condition, expression string, holds func(now string) bool) {
	p.t.Helper()
	within(p.t, condition, func(context.Context) (bool, string) {
		now := p.eval(expression)
		return holds(now), fmt.Sprintf("%.300s", now)
	})
}
