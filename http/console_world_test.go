package http_test

import (
	"crypto/sha256"
	"encoding/base64"
	"html"
	"maps"
	nethttp "net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
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
	return b.do(call{method: "POST", path: path, header: b.header(map[string]string{"Content-Type": "application/x-www-form-urlencoded"}),
		body: form.Encode()})
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
		b.holds("the page", body, text)
	}
}

// TestConsole_EveryPageWithoutParametersRenders: a page of the table cannot be broken unnoticed, also of a service without a tenant, and of
// a tenant that has
// nothing. Other pages with parameters have tests of their own.
func TestConsole_EveryPageWithoutParametersRenders(t *testing.T) {
	w := newTestService(t)
	b := w.signIn(bootstrap)
	pages := 0
	for _, r := range http.ConsoleRoutes() {
		if !r.Session || r.Method != "GET" || strings.Contains(r.Path, "{") || strings.HasSuffix(r.Path, "/live") ||
			strings.HasSuffix(r.Path, ".csv") || strings.HasSuffix(r.Path, ".ndjson") {
			continue
		}
		page := b.open(r.Path)
		if page.status == nethttp.StatusSeeOther { // to the address with an Idempotency-Key
			page = b.follow(page)
		}
		b.shows(page, "<h1>", `popovertarget="menu">Menu</button>`, ">Customers</summary>", ">Operations</summary>",
			"The same by curl and on the command line", "Trace <code>")
		pages++
	}
	if pages < 2 {
		t.Fatalf("only %d pages", pages)
	}
	id := w.newAccountlessTenant("Lonely")
	b.shows(b.open("/console/tenants/"+id), "<h1>Lonely</h1>", "has no subscription", "has no key", "No usage of the tenant is counted yet",
		"has no account")
	for _, path := range []string{"usage", "entitlements", "entitlements/comparison", "reservations", "adjustments/decision", "events"} {
		b.shows(b.open("/console/" + path + "?tenantId=" + id))
	}
	b.shows(b.open("/console/tenants/" + id + "/periods"))
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

// hostile is text that a page must show as it is: as HTML it would run, end an attribute, or begin a formula.
const hostile = `=<script>alert("x")</script>'"&`

// hostileShown is hostile as html/template writes it in text.
const hostileShown = `=&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;&#39;&#34;&amp;`

// viaConsole counts the events of a subject that the console's actions made, by its key.
func (w *testService) viaConsole(subject events.Subject) (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(),
		`SELECT count(*) FROM event_log l JOIN log_origins o ON o.id = l.origin WHERE l.subject = $1 AND o.via = 'console'
			AND o.actor_type = 'api_key'`,
		int16(subject)).Scan(&n))
	return n
}

// once fails unless exactly n events of a subject were made by the console.
func (w *testService) once(subject events.Subject, n int) {
	w.Helper()
	w.same("events by the console", w.viaConsole(subject), n)
}

// clicks sends a form of a page two times at once, and once more with another reason.
func (b *browser) clicks(page answer, path, reason string, more url.Values) []answer {
	b.Helper()
	values := b.form(page, path)
	values.Set("reason", reason)
	maps.Copy(values, more)
	both := make(chan answer, 2)
	for range cap(both) {
		go func() { both <- b.post(path, values) }()
	}
	return []answer{<-both, <-both, b.act(page, path, "clicked again", more)}
}

// twice clicks, and returns the page to which the first result leads, as each other one.
func (b *browser) twice(page answer, path, reason string, more url.Values) answer {
	b.Helper()
	answers := b.clicks(page, path, reason, more)
	for _, got := range answers {
		b.shows(b.follow(got))
		b.same("a click leads to", pathOf(got), pathOf(answers[0]))
	}
	return b.follow(answers[0])
}

// pathOf returns the path that an answer leads to, without its query.
func pathOf(got answer) string {
	path, _, _ := strings.Cut(got.header.Get("Location"), "?")
	return path
}

// problemShown fails unless a page shows a problem with a code and a trace id, and holds a text.
func (b *browser) problemShown(page answer, status int, code string, texts ...string) {
	b.Helper()
	body := string(page.body)
	if page.status != status || !strings.Contains(body, `<code>`+code+`</code>`) || !strings.Contains(body, "Trace <code>") {
		b.Fatalf("the page gives %d, not %d with %s:\n%s", page.status, status, code, body)
	}
	for _, text := range texts {
		b.holds("the page", body, text)
	}
}

func (b *browser) hides(page answer, texts ...string) {
	b.Helper()
	for _, text := range texts {
		if strings.Contains(string(page.body), text) {
			b.Fatalf("the page shows %q:\n%s", text, page.body)
		}
	}
}
