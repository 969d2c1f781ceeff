package http_test

import (
	nethttp "net/http"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http"
)

// TestConsole_BadAddressesArePages with a code and a trace id, and change nothing.
func TestConsole_BadAddressesArePages(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b, before := w.signIn(bootstrap), w.everyRow()
	const tenants = "/console/tenants"
	for _, c := range []struct {
		path   string
		status int
		code   string
	}{
		{"/console/nothing", 404, "not_found"}, {"/console/", 404, "not_found"}, {tenants + "/", 404, "not_found"},
		{"/console//tenants", 404, "not_found"}, {tenants + "//x", 404, "not_found"},
		{"/console/%74enants", 404, "not_found"}, {"/console/..%2fapi%2fv1%2ftenants", 404, "not_found"},
		{"/console/Tenants", 404, "not_found"},
		{"/console/assets/../tenants", 404, "not_found"},
		{tenants + "/%00", 400, "path_invalid"}, {tenants + "/%ff", 400, "path_invalid"}, {tenants + "/%0d%0aX:1", 400, "path_invalid"},
		{tenants + "/" + newID().String(), 404, "tenant_not_found"}, {tenants + "/..%2f..%2fsystem", 404, "tenant_not_found"},
		{tenants + "/%2e%2e", 404, "tenant_not_found"},
		{tenants + "/'%20OR%201=1--", 404, "tenant_not_found"}, {tenants + "/" + strings.Repeat("x", 2000), 404, "tenant_not_found"},
		{tenants + "/{tenantId}", 404, "tenant_not_found"},
		{tenants + "?nothing=1", 400, "unknown_parameter"}, {tenants + "?externalId=a&externalId=b", 400, "duplicate_parameter"},
		{tenants + "?cursor=forged", 400, "cursor_invalid"},
		{tenants + "?cursor=a&cursor=b", 400, "duplicate_parameter"}, {tenants + "?a=%zz", 400, "malformed_query"},
		{tenants + "?a=1;b=2", 400, "malformed_query"},
		{tenants + "?externalId=" + strings.Repeat("x", 10_000), 400, "parameter_invalid"},
		{tenants + "?externalId=%00", 400, "parameter_invalid"}, {tenants + "?externalId=%ff", 400, "parameter_invalid"},
		{"/console/sagas?tenantId=" + newID().String(), 404, "tenant_not_found"}, {"/console/sagas?state=NONE", 400, "parameter_invalid"},
		{"/console/evaluation?periodKey=2026-13&priceKey=x", 400, "period_key_invalid"},
		{"/console/evaluation?periodKey=2026-05&priceKey=x&version=q", 400, "body_invalid"},
		{"/console/adjustments?periodKey=May", 400, "parameter_invalid"}, {"/console/pushes?cursor=x", 400, "cursor_invalid"},
		{"/console/reservations?feature=none&tenantId=" + a.id, 404, "feature_not_found"},
		{tenants + "/" + newID().String() + "/webhooks", 404, "tenant_not_found"},
		{"/console?x=1", 400, "unknown_parameter"}, {"/console/sign-in?x=1", 400, "unknown_parameter"},
		{"/console/link/x?y=1", 400, "unknown_parameter"},
	} {
		b.pageRefused(c.path, b.open(c.path), c.status, c.code)
	}
	for _, c := range []struct{ method, path, allow string }{
		{"POST", tenants, "GET, HEAD"}, {"DELETE", tenants + "/" + a.id, "GET, HEAD"}, {"PUT", "/console/sign-in", "GET, HEAD, POST"},
		{"OPTIONS", "/console", "GET, HEAD"},
		{"TRACE", tenants, "GET, HEAD"}, {"GET", "/console/sign-out", "POST"}, {"BREW", "/console", "GET, HEAD"},
	} {
		got := b.do(call{method: c.method, path: c.path, header: b.header(nil)})
		if b.pageRefused(c.method+" "+c.path, got, 405, "method_not_allowed"); got.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, got.header.Get("Allow"))
		}
	}
	for _, path := range []string{"/console", tenants, tenants + "/" + a.id, "/console/sign-in", "/console/nothing", tenants + "/x"} {
		got, whole := b.do(call{method: "HEAD", path: path, header: b.header(nil)}), b.open(path)
		if b.hasHeaders("HEAD "+path, got); got.status != whole.status || len(got.body) > 0 {
			t.Errorf("HEAD %s gives %d, GET %d", path, got.status, whole.status)
		}
	}
	stranger := (&browser{testService: w}).open("/console/nothing")
	b.pageRefused("no session, absent page", stranger, 404, "not_found")
	w.holds("an absent page without a session", string(stranger.body), `<a href="/console/sign-in">Sign in</a>`)
	w.holds("an absent page", string(b.open("/console/nothing").body), `<a href="/console">first page</a>`)
	w.same("rows", w.everyRow(), before)
}

// TestConsole_OffServesNothingOfIt: each of its addresses is unknown.
func TestConsole_OffServesNothingOfIt(t *testing.T) {
	w := newTestService(t, func(s *http.Server) { s.ConsoleSessions = nil })
	unknown := w.do(call{method: "GET", path: "/nothing"})
	for _, r := range http.ConsoleRoutes() {
		got := w.do(call{method: r.Method, path: r.Path})
		if w.refused(got, 404, "not_found"); strings.ReplaceAll(withoutIDs(got.body), r.Path, "/nothing") != withoutIDs(unknown.body) &&
			!strings.Contains(r.Path, "{") {
			t.Errorf("%s: %s", r.Path, got.body)
		}
	}
	if got := w.do(call{method: "GET", path: "/"}); got.status != nethttp.StatusFound || got.header.Get("Location") != "/docs" {
		t.Errorf("/ gives %d %q", got.status, got.header.Get("Location"))
	}
	on := newTestService(t)
	w.same("the address that / leads to", on.do(call{method: "GET", path: "/"}).header.Get("Location"), "/console")
}
