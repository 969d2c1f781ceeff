package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-rod/rod"
	"github.com/go-rod/rod/lib/input"
	"github.com/go-rod/rod/lib/proto"
)

// actionsByKeyboard executes all actions of the console by the keyboard alone, with JavaScript off. The same form is then sent from a second window,
// twice at once, and a page that is the answer to a form is reloaded and left by "back": each action is executed once.
func actionsByKeyboard(t *testing.T, w *consoleWorld, b *rod.Browser) {
	s := w.newSubject("html")
	operators, own := newTab(t, b, w.at.url(), false), newTab(t, b, w.at.url(), false)
	operators.enter(w.operator)
	own.enter(s.billed.key)
	others := map[bool]*window{false: w.window(t, w.operator), true: w.window(t, s.billed.key)}
	for n, a := range consoleActions() {
		p := operators
		if a.own {
			p = own
		}
		s.execute(p, others[a.own], a, []input.Key{input.Enter, input.Space}[n%2])
		for _, text := range p.complained() {
			t.Errorf("%s: %s", a.route, text)
		}
	}
}

// enter signs in by the keyboard.
func (p *tab) enter(key string) {
	p.t.Helper()
	p.open("/console/sign-in")
	p.walkTo("#key")
	p.write(key)
	p.walkTo("form.signin button")
	p.loads(func() error { return p.Keyboard.Type(input.Enter) })
}

// execute executes an action.
func (s *subject) execute(p *tab, other *window, a consoleAction, key input.Key) {
	s.t.Helper()
	if a.before != nil {
		a.before(s)
	}
	s.find("began", `SELECT clock_timestamp()::text`)
	entered := map[string]string{}
	for name, value := range a.fields {
		entered[name] = s.fill(value)
	}
	address, second := other.open(s.fill(a.page))
	form, found := formOf(second, a.route)
	if !found {
		s.t.Errorf("%s offers no %s:\n%s", address, a.route, second)
		return
	}
	p.open(address)
	p.enterForm(form, entered, s.reasonOf(a))
	p.loads(func() error { return p.Keyboard.Type(key) })
	page := p.html()
	secret := strings.Contains(page, "shown once")
	if done := "Done: " + form.label + "."; strings.Contains(page, `class="problem"`) || !strings.Contains(page, done) && !secret {
		s.t.Errorf("%s does not show its result:\n%s", a.route, page)
	}
	s.executed(a, "by keyboard")
	if secret { // the page is the answer to the form, and no address leads to it
		p.loads(func() error { return proto.PageReload{}.Call(p) })
		p.loads(func() error { return p.NavigateBack() })
	}
	var sent sync.WaitGroup
	for range 2 {
		sent.Go(func() { other.send(form, form.values(entered, s.reasonOf(a))) })
	}
	sent.Wait()
	s.executed(a, "after a reload, back, and a double click in another window")
}

// send sends a form again. The answer leads to a page, or is one: the first result, or that the target has changed or is gone.
func (v *window) send(form htmlForm, values url.Values) {
	answer, page := v.do(http.MethodPost, form.action, values)
	if !slices.Contains([]int{http.StatusSeeOther, http.StatusOK, http.StatusConflict, http.StatusNotFound}, answer.StatusCode) {
		v.t.Errorf("%s in another window gives %d:\n%s", form.action, answer.StatusCode, page)
	}
}

// enterForm walks to a form of the page, enters values, and stops at its button.
func (p *tab) enterForm(form htmlForm, entered map[string]string, reason string) {
	p.t.Helper()
	within := `form[action="` + form.action + `"]`
	p.press(input.Tab, input.Enter) // to the content
	if form.closed {
		p.walkTo("details:has(> " + within + ") > summary")
		p.press(input.Enter)
	}
	for _, c := range form.controls {
		if c.kind == "hidden" {
			continue
		}
		selector := fmt.Sprintf("%s [name=%q]", within, c.name)
		if c.kind == "checkbox" {
			selector += fmt.Sprintf("[value=%q]", c.value)
		}
		p.walkTo(selector)
		value, changed := entered[c.name]
		if c.name == "reason" {
			value, changed = reason, true
		}
		switch {
		case !changed:
		case c.kind == "checkbox":
			if c.checked != (value == c.value) {
				p.press(input.Space)
			}
		case c.kind == "select":
			p.choose(c, value)
		default:
			p.write(value)
		}
	}
	p.walkTo(within + " button")
}

// choose chooses an option of the list that has the focus by its arrows.
func (p *tab) choose(c control, value string) {
	p.t.Helper()
	at, to := -1, -1
	for n, o := range c.options {
		if o == c.value {
			at = n
		}
		if o == value {
			to = n
		}
	}
	if to < 0 {
		p.t.Fatalf("%s has no option %s", c.name, value)
	}
	for ; at < to; at++ {
		p.press(input.ArrowDown)
	}
	for ; at > to; at-- {
		p.press(input.ArrowUp)
	}
}

// walkTo presses the tabulator until an element has the focus, and shows it.
func (p *tab) walkTo(selector string) {
	p.t.Helper()
	for range 400 {
		p.press(input.Tab)
		if p.has(selector + ":focus-visible") {
			return
		}
	}
	p.t.Fatalf("the tabulator does not reach %s:\n%s", selector, p.html())
}

// has reports whether an element is on the page; it needs no script.
func (p *tab) has(selector string) bool {
	p.t.Helper()
	if p.root == 0 {
		document, err := proto.DOMGetDocument{}.Call(p)
		p.must(err)
		p.root = document.Root.NodeID
	}
	found, err := proto.DOMQuerySelector{NodeID: p.root, Selector: selector}.Call(p)
	if err != nil {
		p.t.Fatalf("%s: %v", selector, err)
	}
	return found.NodeID != 0
}
