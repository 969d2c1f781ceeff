package http_test

import (
	"html"
	nethttp "net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/auth"
)

// consolePath fills the parameters of a page's address with the ids of tenant A.
func (m *isolationFixture) consolePath(pattern string) string {
	return parameter.ReplaceAllStringFunc(pattern, func(p string) string {
		if id := m.ids[strings.Trim(p, "{}")]; id != "" {
			return url.PathEscape(id)
		}
		return newID().String()
	})
}

// TestConsole_P9_NoKeyOpensAnothersPage: every page and action, every kind of key, every id of another tenant. The answer is that of a page
// that does not
// exist, also if the key lacks the scope.
func TestConsole_P9_NoKeyOpensAnothersPage(t *testing.T) {
	m := newIsolationFixture(t)
	secret := func(scopes ...string) *browser { key, _ := m.key(m.b.id, nil, scopes...); return m.signIn(key) }
	tenants := map[string]*browser{"all": m.signIn(m.b.key)}
	for _, scope := range commands.TenantScopes() {
		tenants[scope] = secret(scope)
	}
	operators := map[string]*browser{"admin": m.signIn(m.admin), "audit": m.signIn(m.audit), "billing": m.signIn(m.billing)}
	before, cases := m.everyRow(), 0
	for _, r := range http.ConsoleRoutes() {
		if !r.Session {
			continue
		}
		path := m.consolePath(r.Path)
		ask := func(b *browser, path string) answer {
			if r.Method == "GET" {
				return b.open(path)
			}
			return b.post(path, url.Values{"reason": {"x"}})
		}
		for name, b := range tenants {
			cases++
			scoped := r.Who == auth.AnyKey || r.Who != auth.Operator && (name == "all" && anyOf(r.Scopes, commands.TenantScopes()) ||
				slices.Contains(r.Scopes, name))
			got := ask(b, path)
			if r.Method == "POST" && scoped { // an action on the tenant's own rows, whose form lacks its token here
				b.pageRefused(r.Name()+" by a tenant's key with "+name, got, 403, "forbidden")
				continue
			}
			if scoped && !strings.Contains(r.Path, "{") {
				got = ask(b, with(path, "tenantId="+m.a.id)) // its own page, with another's tenant
				if got.status == nethttp.StatusBadRequest && strings.Contains(string(got.body), "unknown_parameter") {
					continue
				}
			}
			b.absent(r.Name()+" by a tenant's key with "+name, got)
		}
		for name, b := range operators {
			if cases++; r.Who == auth.Tenant || r.Who != auth.AnyKey && name != "admin" && !slices.Contains(r.Scopes, name) {
				b.pageRefused(r.Name()+" by an operator with "+name, ask(b, path), 403, "forbidden")
			}
		}
	}
	m.same("rows", m.everyRow(), before)
	if cases < 50 {
		t.Errorf("only %d cases", cases)
	}
}

func anyOf(some, of []string) bool {
	return slices.ContainsFunc(some, func(s string) bool { return slices.Contains(of, s) })
}

// absent fails unless an answer equals that of a page that does not exist. Whether it was compressed depends on the route alone.
func (b *browser) absent(name string, got answer) {
	b.Helper()
	want := b.open("/console/nothing")
	for _, of := range []nethttp.Header{got.header, want.header} {
		of.Del("Vary")
		of.Del("Content-Length")
	}
	if b.hasHeaders(name, got); got.status != want.status || withoutTraces(got) != withoutTraces(want) ||
		len(got.header) != len(want.header) {
		b.Errorf("%s: %d, an absent page %d:\n%s\n%s", name, got.status, want.status, got.body, want.body)
	}
}

// canary is text that would run, or leave its place, if a page did not escape it.
const canary = `<script>alert(1)</script><img src=x onerror=alert(2)>" onmouseover="alert(3)' x='&lt;{{7*7}}`

// TestConsole_EveryRouteHasTheHeaders, with and without a session, and shows hostile text in names, notes, ids and keys as it was sent.
func TestConsole_EveryRouteHasTheHeaders(t *testing.T) {
	m := newIsolationFixture(t)
	spaceless := strings.ReplaceAll(canary, " ", "/")
	m.ids["tenantId"] = m.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil,
		map[string]any{"name": canary, "class": "small", "externalIds": []string{spaceless},
			"metadata": map[string]string{`"><b id=x>`: canary, "href": "javascript:alert(1)"}}})["id"].(string)
	m.key(m.ids["tenantId"], map[string]any{"name": canary}, "usage:read")
	out, in, kinds, shown := &browser{testService: m.testService}, m.signIn(bootstrap), map[string]int{}, 0
	for _, r := range http.ConsoleRoutes() {
		for name, b := range map[string]*browser{"signed out": out, "signed in": in} {
			if r.Path == "/console/sign-out" && b == in {
				continue
			}
			header := b.header(map[string]string{"Content-Type": "application/x-www-form-urlencoded"})
			got := b.do(call{method: r.Method, path: m.consolePath(r.Path), header: header})
			if b.hasHeaders(r.Name()+" "+name, got); got.status >= 500 {
				t.Errorf("%s %s gives %d:\n%s", r.Name(), name, got.status, got.body)
			}
			media, body := got.header.Get("Content-Type"), string(got.body)
			if kinds[media]++; !strings.HasPrefix(media, "text/html") {
				continue
			}
			for _, raw := range []string{"<script>alert", "<img src=x", `" onmouseover=`, "<b id=x>", `href="javascript:`, "49}}"} {
				if strings.Contains(body, raw) {
					t.Errorf("%s shows %q:\n%s", r.Path, raw, body)
				}
			}
			if strings.Contains(html.UnescapeString(body), canary) {
				shown++
			}
		}
	}
	if kinds["text/html; charset=utf-8"] == 0 || kinds["text/css; charset=utf-8"] == 0 || kinds["text/javascript; charset=utf-8"] == 0 ||
		shown < 2 {
		t.Errorf("the kinds of answers are %v, and %d pages show the text as it was sent", kinds, shown)
	}
	page := string(in.open("/console/tenants?externalId=" + url.QueryEscape(spaceless)).body) // in an attribute
	if !strings.Contains(html.UnescapeString(page), `value="`+spaceless+`"`) || strings.Contains(page, `"/onmouseover=`) {
		t.Errorf("the filter is shown as:\n%s", page)
	}
	in.pageRefused("a canary as a parameter", in.open("/console/tenants?"+url.QueryEscape(canary)+"=1"), 400, "unknown_parameter")
	in.hides(in.open("/console/"+url.PathEscape(canary)), "<script>alert")
}
