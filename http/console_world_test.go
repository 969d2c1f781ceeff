package http_test

import (
	"crypto/sha256"
	"encoding/base64"
	"html"
	nethttp "net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http"
)

// browser is a session of the console, without scripts: it opens pages and sends the forms that they show.
type browser struct {
	*testService
	cookie string
}

// signIn opens a session with a key.
func (w *testService) signIn(key string) *browser {
	w.Helper()
	b := &browser{testService: w}
	got := b.post("/console/sign-in", url.Values{"key": {key}})
	if got.status != nethttp.StatusSeeOther {
		w.Fatalf("signing in gives %d:\n%s", got.status, got.body)
	}
	cookie, _, _ := strings.Cut(got.header.Get("Set-Cookie"), ";")
	b.cookie = cookie
	return b
}

func (b *browser) header(more map[string]string) map[string]string {
	h := map[string]string{}
	if b.cookie != "" {
		h["Cookie"] = b.cookie
	}
	for name, value := range more {
		h[name] = value
	}
	return h
}

// open gets a page.
func (b *browser) open(path string) answer {
	b.Helper()
	return b.do(call{method: "GET", path: path, header: b.header(nil)})
}

// post sends a form as it is.
func (b *browser) post(path string, form url.Values) answer {
	b.Helper()
	return b.do(call{method: "POST", path: path, header: b.header(map[string]string{"Content-Type": "application/x-www-form-urlencoded"}), body: form.Encode()})
}

var (
	htmlForm  = regexp.MustCompile(`(?s)<form[^>]* action="([^"]*)"[^>]*>(.*?)</form>`)
	htmlInput = regexp.MustCompile(`<input[^>]* type="(?:hidden|text)"[^>]*>`)
	htmlName  = regexp.MustCompile(` name="([^"]*)"`)
	htmlValue = regexp.MustCompile(` value="([^"]*)"`)
)

// form returns the values of the form that a page shows with an action's path, as a browser would send them.
func (b *browser) form(page answer, path string) url.Values {
	b.Helper()
	for _, f := range htmlForm.FindAllStringSubmatch(string(page.body), -1) {
		if html.UnescapeString(f[1]) != path {
			continue
		}
		values := url.Values{}
		for _, input := range htmlInput.FindAllString(f[2], -1) {
			if name, value := htmlName.FindStringSubmatch(input), htmlValue.FindStringSubmatch(input); name != nil && value != nil {
				values.Set(html.UnescapeString(name[1]), html.UnescapeString(value[1]))
			}
		}
		return values
	}
	b.Fatalf("the page has no form for %s:\n%s", path, page.body)
	return nil
}

// act sends the form of a page with a reason and other values, and returns the answer.
func (b *browser) act(page answer, path, reason string, more url.Values) answer {
	b.Helper()
	values := b.form(page, path)
	values.Set("reason", reason)
	for name, of := range more {
		values[name] = of
	}
	return b.post(path, values)
}

// follow opens the page that an action leads to.
func (b *browser) follow(got answer) answer {
	b.Helper()
	if got.status != nethttp.StatusSeeOther {
		b.Fatalf("the action gives %d:\n%s", got.status, got.body)
	}
	return b.open(got.header.Get("Location"))
}

// shows fails unless a page is whole: its status is 200 and it shows no problem.
func (b *browser) shows(page answer, texts ...string) {
	b.Helper()
	body := string(page.body)
	if page.status != nethttp.StatusOK || strings.Contains(body, `class="problem"`) || strings.Contains(body, "no value") {
		b.Fatalf("the page gives %d:\n%s", page.status, body)
	}
	for _, text := range texts {
		if !strings.Contains(body, text) {
			b.Errorf("the page does not show %q:\n%s", text, body)
		}
	}
}

// TestConsole_EveryPageWithoutParametersRenders: a page of the table cannot be broken unnoticed. Pages with parameters have tests of their own.
func TestConsole_EveryPageWithoutParametersRenders(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	b := w.signIn(bootstrap)
	pages := 0
	for _, r := range http.ConsoleRoutes() {
		if !r.Session || r.Method != "GET" || strings.Contains(r.Path, "{") || strings.HasSuffix(r.Path, "/stream") || strings.HasSuffix(r.Path, ".csv") || strings.HasSuffix(r.Path, ".ndjson") {
			continue
		}
		page := b.open(r.Path)
		if page.status == nethttp.StatusSeeOther { // to the address with an Idempotency-Key
			page = b.follow(page)
		}
		b.shows(page, "<h1>", "The same by curl and on the command line", "Trace <code>")
		pages++
	}
	if pages < 2 {
		t.Fatalf("only %d pages", pages)
	}
}

// TestConsole_TenantsAreCreatedSuspendedAndGetKeys: the table, each action once, and its event.
func TestConsole_TenantsAreCreatedSuspendedAndGetKeys(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	b := w.signIn(bootstrap)
	form := b.follow(b.open("/console/new/tenant"))
	sent := url.Values{"name": {"Acme <b>&"}, "class": {"small"}}
	first := b.act(form, "/console/new/tenant", "a new customer", sent)
	tenant := b.follow(first)
	b.shows(tenant, "Acme &lt;b&gt;&amp;", "ACTIVE", "Done: Create the tenant.")
	if again := b.act(form, "/console/new/tenant", "clicked twice", sent); again.header.Get("Location") == "" {
		t.Errorf("a second click gives %d:\n%s", again.status, again.body)
	}
	var tenants int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM tenants WHERE name = 'Acme <b>&'`).Scan(&tenants))
	if tenants != 1 {
		t.Errorf("%d tenants instead of 1", tenants)
	}
	at := regexp.MustCompile(`/console/tenants/[0-9a-f-]{36}`).FindString(first.header.Get("Location"))
	tenant = b.follow(b.act(tenant, at+"/subscribe", "ordered", url.Values{"plan": {"basic"}, "status": {"ACTIVE"}}))
	b.shows(tenant, "basic")
	made := b.act(tenant, at+"/keys", "for their server", url.Values{"name": {"server"}, "mode": {"live"}, "scopes": {"usage:write", "usage:read"}})
	b.shows(made, "mp_live_", "shown once")
	secret := regexp.MustCompile(`mp_live_[A-Za-z0-9_-]{43}`).FindString(string(made.body))
	if w.do(call{method: "GET", path: "/api/v1/usage/aggregates", key: secret}).status != 200 {
		t.Error("the key does not work")
	}
	if page := b.open(at); strings.Contains(string(page.body), secret) {
		t.Error("the secret is shown again")
	}
	b.shows(b.follow(b.act(b.open(at), at+"/suspend", "unpaid", nil)), "SUSPENDED", "Done: Suspend the tenant.")
	if got := w.do(call{method: "GET", path: "/api/v1/usage/aggregates", key: secret}); got.status != 403 {
		t.Errorf("the key of a suspended tenant gives %d", got.status)
	}
	var via int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log l JOIN log_origins o ON o.id = l.origin WHERE o.via = 'console'`).Scan(&via))
	if via != 4 { // created, subscribed, key, suspended
		t.Errorf("%d events have via console", via)
	}
	var hash int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM console_sessions WHERE token_hash = $1`, tokenHash(b.cookie)).Scan(&hash))
	if hash != 1 {
		t.Error("the table does not hold the hash of the token")
	}
}

// tokenHash is the SHA-256 of the token in a cookie.
func tokenHash(cookie string) []byte {
	_, token, _ := strings.Cut(cookie, "=")
	sum := sha256.Sum256(decoded(token))
	return sum[:]
}

func decoded(token string) []byte {
	b, _ := base64.RawURLEncoding.DecodeString(token)
	return b
}
