package e2e

import (
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

// htmlForm is a form of a page, as its HTML has it.
type htmlForm struct {
	action   string
	closed   bool
	label    string // of its button
	controls []control
}

// control is an input of a form.
type control struct {
	name, kind, value string // kind: hidden, text, area, select, checkbox
	options           []string
	checked           bool
}

var (
	formPattern    = regexp.MustCompile(`(?s)(<summary>[^<]*</summary>\s*)?<form class="action" method="post" action="([^"]*)"[^>]*>(.*?)</form>`)
	controlPattern = regexp.MustCompile(`(?s)<input ([^>]*)>|<select ([^>]*)>(.*?)</select>|<textarea ([^>]*)>(.*?)</textarea>`)
	optionPattern  = regexp.MustCompile(`<option value="([^"]*)"( selected)?`)
	buttonPattern  = regexp.MustCompile(`<button>([^<]*)</button>`)
)

// formOf finds the first form of a page whose action is that of a route.
func formOf(page, route string) (htmlForm, bool) {
	path := regexp.MustCompile("^" + regexp.MustCompile(`\\\{[a-zA-Z]+\\\}`).ReplaceAllString(regexp.QuoteMeta(route), `[^/]+`) + "$")
	for _, at := range formPattern.FindAllStringSubmatchIndex(page, -1) {
		part := func(n int) string {
			if at[2*n] < 0 {
				return ""
			}
			return page[at[2*n]:at[2*n+1]]
		}
		f := htmlForm{action: html.UnescapeString(part(2)), closed: part(1) != ""}
		if !path.MatchString(f.action) {
			continue
		}
		for _, c := range controlPattern.FindAllStringSubmatch(part(3), -1) {
			f.controls = append(f.controls, controlOf(c))
		}
		if button := buttonPattern.FindStringSubmatch(part(3)); button != nil {
			f.label = html.UnescapeString(button[1])
		}
		return f, true
	}
	return htmlForm{}, false
}

func controlOf(m []string) control {
	attributes := m[1] + m[2] + m[4]
	of := func(name string) string {
		found := regexp.MustCompile(`(?:^| )` + name + `="([^"]*)"`).FindStringSubmatch(attributes)
		if found == nil {
			return ""
		}
		return html.UnescapeString(found[1])
	}
	c := control{name: of("name"), kind: of("type"), value: of("value"), checked: strings.HasSuffix(attributes, " checked")}
	switch {
	case m[2] != "":
		c.kind = "select"
		for i, o := range optionPattern.FindAllStringSubmatch(m[3], -1) {
			if c.options = append(c.options, html.UnescapeString(o[1])); i == 0 || o[2] != "" {
				c.value = c.options[i]
			}
		}
	case m[4] != "":
		c.kind, c.value = "area", html.UnescapeString(m[5])
	}
	return c
}

// values are those that a browser sends if a person enters some.
func (f htmlForm) values(entered map[string]string, reason string) url.Values {
	values := url.Values{}
	for _, c := range f.controls {
		value, changed := entered[c.name]
		switch {
		case c.name == "reason":
			values.Set("reason", reason)
		case c.kind == "checkbox":
			if c.checked || changed && value == c.value {
				values.Add(c.name, c.value)
			}
		case changed:
			values.Set(c.name, value)
		default:
			values.Set(c.name, c.value)
		}
	}
	return values
}

// window is a session of the console without a browser.
type window struct {
	t      testing.TB
	base   string
	client *http.Client
	cookie string
}

// window signs in with a key.
func (w *consoleWorld) window(t testing.TB, key string) *window {
	t.Helper()
	client := *w.http
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	v := &window{t: t, base: w.at.url(), client: &client}
	got, _ := v.do(http.MethodPost, "/console/sign-in", url.Values{"key": {key}})
	v.cookie, _, _ = strings.Cut(got.Header.Get("Set-Cookie"), ";")
	if got.StatusCode != http.StatusSeeOther || v.cookie == "" {
		t.Fatalf("signing in gives %d", got.StatusCode)
	}
	return v
}

func (v *window) do(method, path string, form url.Values) (*http.Response, string) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, v.base+path, strings.NewReader(form.Encode()))
	must.OK(v.t, err)
	if r.Header.Set("Cookie", v.cookie); method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	answer, err := v.client.Do(r)
	must.OK(v.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must.OK(v.t, err)
	return answer, string(body)
}

// open opens a page. A page that makes something leads to the address with its key.
func (v *window) open(path string) (address, page string) {
	v.t.Helper()
	answer, page := v.do(http.MethodGet, path, nil)
	if to := answer.Header.Get("Location"); answer.StatusCode == http.StatusSeeOther {
		path = to
		answer, page = v.do(http.MethodGet, path, nil)
	}
	if answer.StatusCode != http.StatusOK {
		v.t.Fatalf("%s gives %d:\n%s", path, answer.StatusCode, page)
	}
	return path, page
}
