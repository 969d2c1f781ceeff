package http_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	nethttp "net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// visitor is a browser of another address than 127.0.0.1, whose attempts are counted alone.
func (w *testService) visitor() *browser { return &browser{testService: w} }

// signedOut fails unless a page asks for a key, and shows no navigation.
func (b *browser) signedOut(name string, got answer) {
	b.Helper()
	body := string(got.body)
	if got.status != nethttp.StatusUnauthorized || !strings.Contains(body, `name="key"`) || strings.Contains(body, "Sign out") ||
		!strings.Contains(body, "<h1>Sign in</h1>") ||
		strings.Contains(body, "<nav") || got.header.Get("WWW-Authenticate") != "" {
		b.Errorf("%s: %d:\n%s", name, got.status, body)
	}
}

var traces = regexp.MustCompile(`<code>[0-9a-f]{32}</code>|name="token" value="[^"]*"`)

// withoutTraces leaves out of a page the parts that differ in each answer: traces and the masks of tokens.
func withoutTraces(a answer) string { return traces.ReplaceAllString(string(a.body), "") }

// wrongKeys are keys that cannot sign in.
func (w *testService) wrongKeys(a *account) map[string]string {
	w.Helper()
	revoked, id := w.key("", nil, "audit")
	w.want(204, call{method: "DELETE", path: "/api/v1/operator-keys/" + id, key: bootstrap})
	expired, id := w.key(a.id, nil, "usage:read")
	w.exec(`UPDATE api_keys SET expires_at = now() - interval '1 minute' WHERE id = $1`, id)
	suspended := w.newAccount("Suspended")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + suspended.id, bootstrap, nil, `{"status":"SUSPENDED"}`})
	known, _ := w.key("", nil, "audit")
	w.signIn(known) // its prefix is known to this instance, too
	return map[string]string{
		"unknown": "mp_op_" + strings.Repeat("x", 43), "a wrong secret behind a known prefix": known[:14] + strings.Repeat("x",
			len(known)-14),
		"empty": "", "no key": "'; DROP TABLE api_keys; --",
		"revoked": revoked, "expired": expired, "of a suspended tenant": suspended.key, "endless": "mp_op_" + strings.Repeat("x", 5000),
	}
}

// TestConsole_EveryWrongKeyGetsTheSameAnswer, and after ten of them of one address further ones are refused for a minute; a right key signs
// in.
func TestConsole_EveryWrongKeyGetsTheSameAnswer(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	wrong := w.wrongKeys(w.newAccount("A"))
	before, same, b := w.everyRow(), "", w.visitor()
	for name, key := range wrong {
		got := b.post("/console/sign-in", url.Values{"key": {key}})
		b.signedOut(name, got)
		if text := fmt.Sprint(withoutTraces(got), len(got.header)); same == "" {
			same = text
		} else if text != same {
			t.Errorf("%s: the answer differs:\n%s", name, text)
		}
		if got.header.Get("Set-Cookie") != "" || key != "" && strings.Contains(string(got.body), key) ||
			!strings.Contains(string(got.body), "<code>unauthenticated</code>") {
			t.Errorf("%s: %v\n%s", name, got.header, got.body)
		}
	}
	limited, got := 0, answer{}
	for range 50 {
		if got = b.post("/console/sign-in", url.Values{"key": {wrong["unknown"]}}); got.status == nethttp.StatusTooManyRequests {
			limited++
		}
	}
	w.same("refused of 50 more attempts", limited, 48)
	if b.pageRefused("a wrong key", got, 429, "rate_limited"); got.header.Get("Retry-After") != "60" {
		t.Errorf("Retry-After: %v", got.header)
	}
	b.pageRefused("a link", b.post("/console/link/"+strings.Repeat("A", 43), nil), 429, "rate_limited")
	w.same("rows", w.everyRow(), before)
	w.same("the right key", b.post("/console/sign-in", url.Values{"key": {bootstrap}}).status, nethttp.StatusSeeOther)
}

// TestConsole_ASessionHasABrowsersCookie that no script reads and no other site sends, and its table has only the hash.
func TestConsole_ASessionHasABrowsersCookie(t *testing.T) {
	w := newTestService(t)
	key, _ := w.key("", nil, "admin")
	b := w.visitor()
	got := b.post("/console/sign-in", url.Values{"key": {" \r\n" + key + "\n"},
		"next": {"/console/tenants?externalId=x"}}) // pasted with its line
	cookie := got.header.Get("Set-Cookie")
	for _, want := range []string{"__Host-meterplex=", "; Path=/", "; Secure", "; HttpOnly", "; SameSite=Strict", "; Max-Age=43200"} {
		w.holds("the cookie", cookie, want)
	}
	if strings.Contains(cookie, "Domain") || got.header.Get("Location") != "/console/tenants?externalId=x" {
		t.Errorf("%v", got.header)
	}
	b.cookie, _, _ = strings.Cut(cookie, ";")
	b.shows(b.open("/console/tenants"), "Operator: admin", "Sign out")
	second := b.post("/console/sign-in", url.Values{"key": {key}, "next": {"//evil.example/console"}})
	w.same("signing in leads to", second.header.Get("Location"), "/console")
	b.signedOut("the browser's last session", b.open("/console/tenants"))
	var sessions, tokens int
	_, token, _ := strings.Cut(strings.Split(second.header.Get("Set-Cookie"), ";")[0], "=")
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE token_hash = $1) FROM console_sessions`,
		decoded(token)).Scan(&sessions, &tokens))
	if sessions != 1 || tokens != 0 {
		t.Errorf("%d sessions, %d with their token", sessions, tokens)
	}
}

// TestConsole_ASessionEnds with its time, its key and its tenant, and by signing out.
func TestConsole_ASessionEnds(t *testing.T) {
	w, a := newServiceWithAccount(t)
	const page = "/console/tenants"
	at := func(b *browser, sql string) {
		w.exec(sql+` WHERE token_hash = $1`, tokenHash(b.cookie))
	}
	b := w.signIn(bootstrap)
	at(b, `UPDATE console_sessions SET used_at = now() - interval '29 minutes', created_at = now() - interval '719 minutes'`)
	b.shows(b.open(page))
	var used bool
	w.must(w.pool.QueryRow(t.Context(), `SELECT used_at > now() - interval '1 minute' FROM console_sessions WHERE token_hash = $1`,
		tokenHash(b.cookie)).Scan(&used))
	if !used {
		t.Error("a page does not count as a use")
	}
	at(b, `UPDATE console_sessions SET created_at = now() - interval '12 hours', used_at = now()`)
	b.signedOut("after 12 hours", b.open(page))
	b = w.signIn(bootstrap)
	at(b, `UPDATE console_sessions SET used_at = now() - interval '30 minutes'`)
	b.signedOut("after 30 idle minutes", b.open(page))

	b = w.signIn(bootstrap)
	form := b.form(b.open(page), "/console/sign-out")
	b.pageRefused("signing out without the token", b.post("/console/sign-out", nil), 403, "forbidden")
	if got := b.post("/console/sign-out", form); got.status != nethttp.StatusSeeOther ||
		!strings.Contains(got.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("signing out gives %d %v", got.status, got.header)
	}
	b.signedOut("after signing out", b.open(page))
	b.signedOut("a page that is absent", w.visitor().open(page))

	// Another bootstrap operator key ends the sessions of the last one, also of one that was stolen.
	b = w.signIn(bootstrap)
	s := w.server()
	s.BootstrapOperatorKey = "mp_op_another-another-another-another-another"
	other := *w
	other.serve(s)
	(&browser{&other, b.cookie}).signedOut("with another bootstrap key", (&browser{&other, b.cookie}).open(page))
	b.shows(b.open(page))

	// A tenant's key.
	events := w.signIn(a.key)
	events.signedOut("after its tenant is suspended", func() answer {
		w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"status":"SUSPENDED"}`})
		return events.open(page)
	}())
}

// TestConsole_ALinkSignsInOnce: by its button, not by a preview of its page.
func TestConsole_ALinkSignsInOnce(t *testing.T) {
	w := newTestService(t)
	open := func(seed string, at time.Time) string {
		path, err := console.OpenLink(t.Context(), store.NewConsoleSessions(w.pool), sha256.Sum256([]byte(seed)),
			auth.BootstrapSessionKey(bootstrap), at)
		w.must(err)
		return path
	}
	path, b := open("one", time.Now()), w.visitor()
	var plain int
	token := sha256.Sum256([]byte("one"))
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM console_links WHERE token_hash = $1`, token[:]).Scan(&plain))
	w.same("links that are stored by their token", plain, 0)
	for _, method := range []string{"GET", "GET", "HEAD"} {
		if got := b.do(call{method: method, path: path}); got.status != 200 || got.header.Get("Set-Cookie") != "" || method == "GET" &&
			!strings.Contains(string(got.body), `<form method="post" action="`+path+`">`) {
			t.Errorf("%s: %d %v\n%s", method, got.status, got.header, got.body)
		}
	}
	b.pageRefused("a link from another site", b.do(call{method: "POST", path: path,
		header: map[string]string{"Sec-Fetch-Site": "cross-site"}}), 403, "forbidden")
	used := b.post(path, nil)
	if used.status != nethttp.StatusSeeOther || used.header.Get("Location") != "/console" {
		t.Fatalf("the button gives %d:\n%s", used.status, used.body)
	}
	b.cookie, _, _ = strings.Cut(used.header.Get("Set-Cookie"), ";")
	b.shows(b.open("/console/tenants"), "Sign out")
	for name, path := range map[string]string{"used": path, "expired": open("two", time.Now().Add(-15*time.Minute)),
		"forged": "/console/link/" + strings.Repeat("A", 43), "short": "/console/link/x", "encoded": "/console/link/%2e%2e"} {
		b.pageRefused(name, w.visitor().post(path, nil), 404, "not_found")
	}
}

// served reports whether the console's routes have a page. To make their list costs as much as the start of a service.
func served(routes []auth.Route, path string) bool {
	return slices.ContainsFunc(routes, func(r auth.Route) bool { return r.Path == path && r.Method == "GET" })
}

// TestConsole_ARevokedKeyExecutesNothing: between the page and its action, and on another instance within a second, live parts included.
func TestConsole_ARevokedKeyExecutesNothing(t *testing.T) {
	w, a := newServiceWithAccount(t)
	there := w.secondInstance()
	there.confirmGrants()
	key, id := w.key("", nil, "admin", "audit")
	b := there.signIn(key)
	page := b.open("/console/tenants/" + a.id)
	b.shows(page)
	b.shows(b.open("/console/events/live?tenantId=" + a.id))
	w.want(204, call{method: "DELETE", path: "/api/v1/operator-keys/" + id, key: bootstrap})
	withinASecond(t, "revoked", "401", func() string { return fmt.Sprint(b.open("/console/tenants/" + a.id).status) })
	b.signedOut("revoked", b.act(page, "/console/tenants/"+a.id+"/suspend", "too late", nil))
	(&browser{w, b.cookie}).signedOut("revoked, here", (&browser{w, b.cookie}).open("/console/tenants"))
	b.signedOut("revoked, a live part that was read before", b.open("/console/events/live?tenantId="+a.id))
	w.same("the tenant", w.get("/tenants/" + a.id)["status"], "ACTIVE")
}

// TestConsole_BadCookiesAreNoSession.
func TestConsole_BadCookiesAreNoSession(t *testing.T) {
	w := newTestService(t)
	b := w.signIn(bootstrap)
	random := sha256.Sum256([]byte("another database"))
	const name = "__Host-meterplex="
	for what, cookie := range map[string]string{
		"absent": "", "empty": name, "forged": name + base64.RawURLEncoding.EncodeToString(random[:]), "too long": b.cookie + "A",
		"the hash": name + base64.RawURLEncoding.EncodeToString(tokenHash(b.cookie)), "two of one name": b.cookie + "; " + b.cookie,
		"another name": b.cookie[2:], "SQL": name + "' OR 1=1 --", "a key": name + bootstrap,
	} {
		other := &browser{w, cookie}
		other.signedOut(what, other.open("/console/tenants"))
	}
	b.shows(b.open("/console/tenants"))
}
