package http_test

import (
	"fmt"
	nethttp "net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// everyRow counts the rows of each table, except the sessions of the console.
func (w *testService) everyRow() (counts string) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(), `SELECT string_agg(relname || ' ' || (xpath('/row/n/text()',
 query_to_xml(format('SELECT count(*) AS n FROM %I', relname), false, true, '')))[1]::text, ', ' ORDER BY relname)
 FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'console_sessions' AND has_table_privilege(oid,
 'SELECT')`).Scan(&counts))
	return counts
}

var shownTrace = regexp.MustCompile(`Trace <code>[0-9a-f]{32}</code>`)

// pageRefused fails unless an answer is a page with a problem: its status, code, detail and trace id, and the headers of every page.
func (b *browser) pageRefused(name string, got answer, status int, code string) {
	b.Helper()
	body := string(got.body)
	if got.status != status || !strings.Contains(body, "<code>"+code+"</code>") || !shownTrace.MatchString(body) ||
		!strings.Contains(body, `role="alert"`) || strings.Contains(body, "<p></p>") {
		b.Errorf("%s: %d instead of %d %s:\n%.3000s", name, got.status, status, code, body)
	}
	b.hasHeaders(name, got)
}

const wantedPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action " +
	"'self'; base-uri 'none'; frame-ancestors 'none'"

// hasHeaders fails unless an answer has the headers of the console.
func (b *browser) hasHeaders(name string, got answer) {
	b.Helper()
	for header, want := range map[string]string{"Content-Security-Policy": wantedPolicy, "X-Content-Type-Options": "nosniff",
		"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
		if values := got.header.Values(header); len(values) != 1 || values[0] != want {
			b.Errorf("%s: %s is %q instead of %q", name, header, values, want)
		}
	}
}

// formCase is a form that is refused. change edits the values of the right one.
type formCase struct {
	name   string
	change func(v url.Values)
	header map[string]string
	status int
	code   string
}

func set(name string, values ...string) func(url.Values) {
	return func(v url.Values) { v[name] = values }
}

func formCases() []formCase {
	const forbidden, missing, reason = "forbidden", "reason_required", "reason_invalid"
	return []formCase{
		{"no reason", func(v url.Values) { v.Del("reason") }, nil, 400, missing},
		{"a reason of spaces", set("reason", " \u00a0\t "), nil, 400, missing},
		{"a reason with a control character", set("reason", "a\x1bb"), nil, 400, reason},
		{"a reason that changes the direction of text", set("reason", "a\u202eb"), nil, 400, reason},
		{"a reason that is not UTF-8", set("reason", "a\xffb"), nil, 400, reason},
		{"a long reason", set("reason", strings.Repeat("ü", 501)), nil, 400, reason},
		{"an unknown member", set("reasons", "a"), nil, 400, "unknown_member"},
		{"two states", set("state", "a", "b"), nil, 400, "body_invalid"},
		{"another page's parameters", set("at", "nothing=1"), nil, 400, "unknown_parameter"},
		{"over the limit", set("reason", strings.Repeat("a", 300<<10)), nil, 413, "body_too_large"},
		{"JSON", nil, map[string]string{"Content-Type": "application/json"}, 415, "media_type_unsupported"},
		{"no token", func(v url.Values) { v.Del("token") }, nil, 403, forbidden},
		{"a forged token", set("token", strings.Repeat("A", 86)), nil, 403, forbidden},
		{"a short token", set("token", strings.Repeat("A", 43)), nil, 403, forbidden},
		{"another site", nil, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, forbidden},
		{"the origin of another site", nil, map[string]string{"Origin": "https://evil.example"}, 403, forbidden},
		{"the origin null", nil, map[string]string{"Origin": "null"}, 403, forbidden},
	}
}

// TestConsole_BadFormsChangeNothing, and each is a page that says why.
func TestConsole_BadFormsChangeNothing(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.signIn(bootstrap)
	page, path := b.open("/console/tenants/"+a.id), "/console/tenants/"+a.id+"/suspend"
	right, before := b.form(page, path), w.everyRow()
	send := func(path string, c formCase) answer {
		values := url.Values{}
		for name, of := range right {
			values[name] = of
		}
		if values.Set("reason", "unpaid"); c.change != nil {
			c.change(values)
		}
		header := b.header(map[string]string{"Content-Type": "application/x-www-form-urlencoded"})
		for name, value := range c.header {
			header[name] = value
		}
		return b.do(call{method: "POST", path: path, header: header, body: values.Encode()})
	}
	for _, c := range formCases() {
		b.pageRefused(c.name, send(path, c), c.status, c.code)
	}
	b.pageRefused("a parameter of the address", send(path+"?x=1", formCase{}), 400, "unknown_parameter")
	b.pageRefused("a body that is no form", b.do(call{method: "POST", path: path,
		header: b.header(map[string]string{"Content-Type": "application/x-www-form-urlencoded"}), body: "a=%zz&;"}), 400,
		"malformed_request")
	other := w.signIn(bootstrap)
	foreign := other.form(other.open("/console/tenants/"+a.id), path)
	b.pageRefused("another session's token", send(path, formCase{change: set("token", foreign.Get("token"))}), 403, "forbidden")
	(&browser{testService: w}).signedOut("no session", (&browser{testService: w}).act(page, path, "unpaid", nil))
	if after := w.everyRow(); after != before {
		t.Fatalf("rows were %s, are %s", before, after)
	}
	if again := b.form(b.open("/console/tenants/"+a.id), path).Get("token"); again == right.Get("token") {
		t.Error("two answers have one token: the length of a compressed page would help to guess it")
	}
	// So Chromium sends a form of a page with the policy no-referrer: its Origin is null.
	if got := send(path, formCase{header: map[string]string{"Origin": "null", "Sec-Fetch-Site": "same-origin",
		"Content-Type": "application/x-www-form-urlencoded; charset=UTF-8"}}); got.status != nethttp.StatusSeeOther {
		t.Errorf("the right form gives %d:\n%s", got.status, got.body)
	}
	old := right.Get("token")
	gzip := map[string]string{"Accept-Encoding": "gzip", "Content-Type": "application/x-www-form-urlencoded"}
	_, style, _ := strings.Cut(string(page.body), `<link rel="stylesheet" href="`)
	style, _, _ = strings.Cut(style, `"`)
	for _, path := range []string{"/console/tenants/" + a.id, style} {
		if got := b.do(call{path: path, header: b.header(gzip)}); got.status != 200 || got.header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s, %d bytes, is not compressed: %d, %v", path, len(got.body), got.status, got.header)
		}
	}
	keys := b.form(page, "/console/tenants/"+a.id+"/keys")
	for name, value := range map[string]string{"name": "k", "scopes": "usage:read", "reason": "test"} {
		keys.Set(name, value)
	}
	if got := b.do(call{method: "POST", path: "/console/tenants/" + a.id + "/keys", header: b.header(gzip), body: keys.Encode()}); got.status != 200 ||
		!strings.Contains(string(got.body), "mp_") {
		t.Errorf("the page of a new key is %d, %v", got.status, got.header)
	}
	b = w.signIn(bootstrap)
	b.pageRefused("an old token", send(path, formCase{change: set("token", old)}), 403, "forbidden")
}

// TestConsole_APlanIsWrittenInRows: a row that is not empty is an entitlement, and a fault names its member. A long list is JSON.
func TestConsole_APlanIsWrittenInRows(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	b := w.signIn(bootstrap)
	const path, change = "/console/new/plan", "/console/catalogue/plans/rows/change"
	sent := url.Values{"key": {"rows"}, "name": {"Rows"}, "entitlements.0.feature": {"api_calls"},
		"entitlements.0.limit": {"9007199254740991"}, "entitlements.0.limitBehavior": {"SOFT"}, "entitlements.0.resetPeriod": {"MONTHLY"}, "entitlements.2.feature": {"sso"}}
	page := b.open(path)
	b.shows(page, `<option value="api_calls">`, `aria-label="Feature, row 1"`)
	plan := b.follow(b.act(page, path, "new", sent))
	w.same("the plan", valuesOf(w.get("/plans/rows"), "name", "entitlements"), "Rows [map[feature:api_calls limit:9007199254740991 "+
		"limitBehavior:SOFT onIngest:record resetPeriod:MONTHLY] map[feature:sso limit:<nil>]]")
	b.shows(plan, `name="entitlements.0.limit" type="text" value="9007199254740991"`, `name="entitlements.1.feature" type="text" value="sso"`,
		"<option selected>SOFT</option>")
	selects := url.Values{"entitlements.0.limitBehavior": {"SOFT"}, "entitlements.0.resetPeriod": {"MONTHLY"}}
	with := func(values url.Values, name, value string) url.Values {
		all := url.Values{name: {value}}
		for of, value := range values {
			if of != name {
				all[of] = value
			}
		}
		return all
	}
	for _, bad := range []struct{ name, value, code, shown string }{
		{"entitlements.0.limit", "1.5", "body_invalid", `value="1.5"`},
		{"entitlements.0.limit", "-1", "limit_invalid", `value="-1"`},
		{"entitlements.4.feature", "none", "entitlements_invalid", `value="none"`},
		{"entitlements.0.colour", "red", "unknown_member", ""},
		{"entitlements.100.feature", "sso", "unknown_member", ""},
		{"prices.0.feature", "sso", "unknown_member", ""},
	} {
		got := b.act(plan, change, "worse", with(selects, bad.name, bad.value))
		if body := string(got.body); got.status < 400 || !strings.Contains(body, "<code>"+bad.code+"</code>") ||
			!strings.Contains(body, bad.shown) {
			t.Errorf("%s=%s gives %d:\n%s", bad.name, bad.value, got.status, got.body)
		}
	}
	b.follow(b.act(plan, change, "emptied", url.Values{"entitlements.0.feature": {""}, "entitlements.0.limit": {""}}))
	w.same("the changed plan", valuesOf(w.get("/plans/rows"), "entitlements"), "[map[feature:sso limit:<nil>]]")
	var many []string
	for i := range 41 {
		feature := fmt.Sprint("f", i)
		w.want(201, call{"PUT", "/api/v1/features/" + feature, bootstrap, nil, `{"name":"F","type":"BOOLEAN"}`})
		many = append(many, `{"feature":"`+feature+`"}`)
	}
	w.want(200, call{"PUT", "/api/v1/plans/rows", bootstrap, nil, `{"name":"Long","entitlements":[` + strings.Join(many, ",") + `]}`})
	b.shows(b.open("/console/catalogue/plans/rows"), `<textarea id=`, "&#34;f40&#34;")
}
