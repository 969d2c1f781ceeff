package http_test

import (
	nethttp "net/http"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// portalLink creates a link for the people of a tenant, and returns its path, its token and its key.
func (w *testService) portalLink(tenant string) (path, token, key string) {
	w.Helper()
	made := w.want(201, call{"POST", "/api/v1/tenants/" + tenant + "/portal-links", bootstrap, nil, `{}`})
	path = made["secret"].(string)
	return path, strings.TrimPrefix(path, "/console/portal/"), made["id"].(string)
}

// opensNothing fails unless the path of a link opens no page.
func (b *browser) opensNothing(name, path string) {
	b.Helper()
	if got := b.open(path); got.status != 404 || strings.Contains(string(got.body), "Billing figures") {
		b.Errorf("%s gives %d:\n%s", name, got.status, got.body)
	}
}

// A link opens the page of its tenant without signing in, and no other. It is made once, in the log, for at most a day.
func TestAPortalLinkShowsItsTenantAlone(t *testing.T) {
	w, a := newServiceWithAccount(t)
	other := w.newAccount("Other <b>")
	w.use(a, "a1", 41)
	w.use(other, "o1", 77777)
	again := call{"POST", "/api/v1/tenants/" + a.id + "/portal-links", bootstrap, map[string]string{"Idempotency-Key": "portal-link-1"},
		`{"expiresInSeconds":86400}`}
	made := w.want(201, again)
	expires, err := time.Parse(time.RFC3339Nano, made["expiresAt"].(string))
	if err != nil || time.Until(expires) > 24*time.Hour || time.Until(expires) < 23*time.Hour {
		t.Errorf("the link ends at %v: %v", expires, err)
	}
	if repeated := w.want(200, again); repeated["id"] != made["id"] || repeated["secret"] != nil {
		t.Errorf("the repeat is answered %v", repeated)
	}
	var recorded int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log l WHERE subject = $1 AND tenant_id = $2
		AND l.payload ->> 'name' = 'Portal link' AND l.payload ->> 'id' = $3`, events.APIKeyCreated, a.id, made["id"]).Scan(&recorded))
	w.same("events of the link", recorded, 1)

	b := &browser{testService: w} // not signed in
	path, token, _ := w.portalLink(a.id)
	for _, link := range []string{made["secret"].(string), path, path + "?feature=api_calls"} {
		page := b.open(link)
		b.shows(page, "<h1>A</h1>", "api_calls", ">41</td>", "This page only reads", `id="series-table"`)
		b.hides(page, "Other", "77,777", "<form", "/console/usage", token)
		b.hasHeaders(link, page)
		if page.header.Get("Set-Cookie") != "" {
			t.Errorf("the page sets %q", page.header.Get("Set-Cookie"))
		}
	}
	theirs, _, _ := w.portalLink(other.id)
	b.hides(b.open(theirs), ">41</td>")
	b.shows(b.open(path), "no charges")
	b.pageRefused("another parameter", b.open(path+"?tenantId="+other.id), 400, "unknown_parameter")
}

// A link opens on each instance over one database, also after a restart, and a revocation on one ends it on all.
func TestAPortalLinkOpensOnEachInstance(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.use(a, "a1", 41)
	path, _, id := w.portalLink(a.id)
	first := *w
	w.store = store.New(w.pool, w.newLog(w.pool, "second", nil), store.Config{Admission: edge.AdmissionOf})
	w.serve(w.server()) // another instance, or the first one after a restart
	one, two := &browser{testService: &first}, &browser{testService: w}
	if first.url == w.url {
		t.Fatal("both instances have one address")
	}
	for _, b := range []*browser{one, two} {
		b.shows(b.open(path), "<h1>A</h1>", ">41</td>")
	}
	w.want(204, call{method: "DELETE", path: "/api/v1/tenants/" + a.id + "/api-keys/" + id, key: bootstrap})
	two.opensNothing("a revoked link", path)
	for one.open(path).status == nethttp.StatusOK { // within a second
		time.Sleep(10 * time.Millisecond)
	}
	one.opensNothing("a link that another instance has revoked", path)
}

// An altered, expired or revoked link opens no page, nor does another key; and the key of a link makes no change.
func TestAPortalLinkThatIsNotValidOpensNothing(t *testing.T) {
	w, a := newServiceWithAccount(t)
	other := w.newAccount("Other")
	b := &browser{testService: w}
	path, token, _ := w.portalLink(a.id)
	for i := len("live_"); i < len(token); i += 7 {
		altered := []byte(token)
		if altered[i]++; altered[i] > 'y' || altered[i] == '[' || altered[i] == ':' {
			altered[i] = 'A'
		}
		b.opensNothing("an altered link", "/console/portal/"+string(altered))
	}
	for _, wrong := range []string{"x", token[:len(token)-1], token + "A", strings.Replace(token, "live_", "test_", 1),
		strings.TrimPrefix(a.key, "mp_"),
		strings.TrimPrefix(bootstrap, "mp_")} {
		b.opensNothing("a wrong link", "/console/portal/"+wrong)
	}
	reads, _ := w.key(a.id, nil, "usage:read", "entitlements:read")
	b.opensNothing("a key without an end", "/console/portal/"+strings.TrimPrefix(reads, "mp_"))

	before := w.everyRow()
	key := "mp_" + token
	for _, c := range []call{
		{"POST", "/api/v1/usage/events", key, nil, batch(event("p1", nil))},
		{"POST", "/api/v1/entitlements/api_calls/consume", key, nil, `{"eventId":"p2","amount":1}`},
		{"POST", "/api/v1/tenants/" + a.id + "/portal-links", key, nil, `{}`},
		{"PATCH", "/api/v1/tenants/" + a.id, key, nil, `{"name":"B"}`},
		{"POST", "/api/v1/tenants/" + a.id + "/webhooks", key, nil, `{"url":"https://example.com/x","events":["period.closed"]}`},
	} {
		if got := w.do(c); got.status != 403 && got.status != 404 {
			t.Errorf("%s %s gives %d: %s", c.method, c.path, got.status, got.body)
		}
	}
	if got := b.do(call{method: "POST", path: path, header: b.header(nil), body: "x=1"}); got.status < 400 {
		t.Errorf("POST of the page gives %d", got.status)
	}
	w.refused(w.do(call{method: "GET", path: "/api/v1/usage/aggregates?tenantId=" + other.id, key: key}), 404, "tenant_not_found")
	if after := w.everyRow(); after != before {
		t.Errorf("rows were %s, are %s", before, after)
	}

	expired, _, id := w.portalLink(a.id)
	w.exec(`UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE id = $1`, id)
	b.opensNothing("an expired link", expired)
	revoked, _, id := w.portalLink(a.id)
	w.want(204, call{method: "DELETE", path: "/api/v1/tenants/" + a.id + "/api-keys/" + id, key: bootstrap})
	b.opensNothing("a revoked link", revoked)
	b.shows(b.open(path), "<h1>A</h1>")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"status":"SUSPENDED"}`})
	for b.open(path).status == nethttp.StatusOK { // it was opened before: a suspension holds within a second
		time.Sleep(10 * time.Millisecond)
	}
	b.opensNothing("a link of a suspended tenant", path)
}

// Only the sites that the installation names may embed the page of a link; no site may embed another page.
func TestOnlyNamedSitesEmbedAPortal(t *testing.T) {
	w, a := newServiceWithAccount(t, func(s *http.Server) { s.PortalFrames = []string{"https://app.example.com", "https://b.example"} })
	path, _, _ := w.portalLink(a.id)
	b := &browser{testService: w}
	for _, c := range []struct {
		path, want string
		status     int
	}{
		{path, "frame-ancestors https://app.example.com https://b.example", nethttp.StatusOK},
		{"/console/portal/x", "frame-ancestors https://app.example.com https://b.example", nethttp.StatusNotFound},
		{"/console/sign-in", "frame-ancestors 'none'", nethttp.StatusOK},
	} {
		got := b.open(c.path)
		if policy := got.header.Get("Content-Security-Policy"); got.status != c.status || !strings.HasSuffix(policy, c.want) {
			t.Errorf("%s gives %d with %q", c.path, got.status, policy)
		}
	}
}
