package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/go-rod/rod"
	"github.com/go-rod/rod/lib/cdp"
	"github.com/go-rod/rod/lib/input"
	"github.com/go-rod/rod/lib/proto"

	"github.com/meterplex/meterplex/internal/must"
)

// startBrowser runs Chromium until the test ends. Its address is the DevTools protocol's.
func startBrowser(t *testing.T) *rod.Browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("SKIPPED the tests of the console in a browser: install Debian's package chromium")
	}
	// Pages are open for less than a second: to replace a tab's frame for each of them (RenderDocument), and to optimise their scripts,
	// costs more than it saves.
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--remote-debugging-port=0", "--user-data-dir="+t.TempDir(), "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-extensions",
		"--disable-sync", "--disable-features=BackForwardCache,RenderDocument", "--js-flags=--no-opt,--no-maglev", "--hide-scrollbars",
		"--force-color-profile=srgb", "--font-render-hinting=none", "about:blank")
	cmd.SysProcAttr = childAttributes()
	out, err := cmd.StderrPipe()
	must.OK(t, err)
	address, started, ended := make(chan string, 1), make(chan error, 1), make(chan struct{})
	go func() { // see runOnOneThread
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		started <- cmd.Start()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if at, ok := strings.CutPrefix(lines.Text(), "DevTools listening on "); ok {
				address <- at
			}
		}
		_ = cmd.Wait()
	}()
	must.OK(t, <-started)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(func() {
		cancel()
		_ = cmd.Process.Kill()
		<-ended
	})
	select {
	case at := <-address:
		socket := new(cdp.WebSocket)
		must.OK(t, socket.Connect(ctx, at, nil))
		b := rod.New().Context(context.WithoutCancel(ctx)).Client(cdp.New().Start(socket)).NoDefaultDevice()
		must.OK(t, b.Connect())
		if v, err := (proto.BrowserGetVersion{}).Call(b); err == nil {
			t.Log(v.Product)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	case <-ended:
		t.Fatal("chromium ended at its start")
	case <-ctx.Done():
		t.Fatalf("chromium did not start within %s", patience)
	}
	return nil
}

// tab is a page of the browser, and its complaints.
type tab struct {
	*rod.Page
	t    testing.TB
	base string
	root proto.DOMNodeID // of the document that is loaded; 0: not known

	mu         sync.Mutex
	complaints []string
}

func jsonText(v any) string { text, _ := json.Marshal(v); return string(text) }

func (p *tab) must(err error) {
	p.t.Helper()
	must.OK(p.t, err)
}

func (p *tab) complain(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complaints = append(p.complaints, text)
}

// newTab opens a window with cookies of its own.
func newTab(t testing.TB, b *rod.Browser, base string) *tab {
	t.Helper()
	window, err := b.Incognito()
	must.OK(t, err)
	page, err := window.Page(proto.TargetCreateTarget{URL: "about:blank"})
	must.OK(t, err)
	p := &tab{Page: page.Context(t.Context()), t: t, base: base}
	go p.EachEvent(func(e *proto.LogEntryAdded) {
		if e.Entry.Level == proto.LogLogEntryLevelError || e.Entry.Source == proto.LogLogEntrySourceSecurity {
			p.complain(e.Entry.Text + " " + e.Entry.URL)
		}
	}, func(e *proto.RuntimeExceptionThrown) {
		p.complain(e.ExceptionDetails.Text + ": " + e.ExceptionDetails.Exception.Description)
	}, func(e *proto.RuntimeConsoleAPICalled) {
		if e.Type == proto.RuntimeConsoleAPICalledTypeError || e.Type == proto.RuntimeConsoleAPICalledTypeWarning {
			p.complain(fmt.Sprint("the console: ", jsonText(e.Args)))
		}
	})()
	p.size(1280, 800)
	return p
}

// complained returns and forgets the errors that the browser has logged.
func (p *tab) complained() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.complaints
	p.complaints = nil
	return all
}

func (p *tab) size(width, height int) {
	p.must(proto.EmulationSetDeviceMetricsOverride{Width: width, Height: height, DeviceScaleFactor: 1}.Call(p))
}

// scheme emulates a preference for light or dark.
func (p *tab) scheme(name string) {
	p.must(proto.EmulationSetEmulatedMedia{Features: []*proto.EmulationMediaFeature{{Name: "prefers-color-scheme", Value: name}}}.Call(p))
}

// open opens an address of the console and waits until it is loaded.
func (p *tab) open(path string) {
	p.t.Helper()
	p.loads(func() error { _, err := proto.PageNavigate{URL: p.base + path}.Call(p); return err })
}

// loads waits until the page that an act opens is loaded.
func (p *tab) loads(act func() error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	wait := p.Context(ctx).WaitEvent(&proto.PageLoadEventFired{})
	p.must(act())
	wait()
	p.root = 0
	if err := ctx.Err(); err != nil {
		p.t.Fatalf("no page was loaded after %s: %v", p.eval("location.href"), err)
	}
}

// eval returns the text of an expression, or of its promise.
func (p *tab) eval(expression string) string {
	p.t.Helper()
	text := "(async () => String(await (" + expression + ")))()"
	got, err := proto.RuntimeEvaluate{Expression: text, AwaitPromise: true, ReturnByValue: true}.Call(p)
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	if got.ExceptionDetails != nil {
		p.t.Fatalf("%.300s: %s", expression, jsonText(got.ExceptionDetails))
	}
	return got.Result.Value.Str()
}

// press presses keys one after another.
func (p *tab) press(keys ...input.Key) {
	p.t.Helper()
	for _, k := range keys {
		p.must(p.Keyboard.Type(k))
	}
}

func (p *tab) write(text string) {
	p.t.Helper()
	p.must(proto.InputInsertText{Text: text}.Call(p))
}

// html is the page's document; it needs no script.
func (p *tab) html() string {
	p.t.Helper()
	root, err := proto.DOMGetDocument{}.Call(p)
	p.must(err)
	p.root = root.Root.NodeID
	got, err := proto.DOMGetOuterHTML{NodeID: p.root}.Call(p)
	p.must(err)
	return got.OuterHTML
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
		p.html()
	}
	found, err := proto.DOMQuerySelector{NodeID: p.root, Selector: selector}.Call(p)
	if err != nil {
		p.t.Fatalf("%s: %v", selector, err)
	}
	return found.NodeID != 0
}

// signIn signs in by the keyboard; it needs no script.
func (p *tab) signIn(key, next string) {
	p.t.Helper()
	p.open("/console/sign-in?next=" + next)
	p.walkTo("#key")
	p.write(key)
	p.loads(func() error { return p.Keyboard.Type(input.Enter) })
	if html := p.html(); !strings.Contains(html, "Sign out") {
		p.t.Fatalf("nobody is signed in:\n%s", html)
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
