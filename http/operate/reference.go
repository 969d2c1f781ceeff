package operate

import (
	"crypto/sha256"
	_ "embed" // for referencePage
	"encoding/base64"
	"fmt"
	"html"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/meterplex/meterplex/domain/codes"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/problem"
)

// ReferencePage renders the OpenAPI document. It is one file and loads only that
// document, so that it works without internet access.
//
//go:embed reference.html
var ReferencePage string

// newReference serves the page with a Content-Security-Policy that allows only its own
// script and style, by their hashes.
func newReference() http.Handler {
	policy := "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:; " +
		"script-src '" + hashOf("script") + "'; style-src '" + hashOf("style") + "'"
	page := []byte(strings.Replace(ReferencePage, "{{codes}}", codeTable(), 1))
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Referrer-Policy", "no-referrer")
		_, _ = w.Write(page)
	})
}

// codeTable renders the table of codes. It is part of the page, not made by its script, so that the
// type of each problem leads to its row.
func codeTable() string {
	var b strings.Builder
	b.WriteString("<table><thead><tr>")
	for _, head := range []string{"code", "status", "answered in", "retry", "meaning and remedy"} {
		b.WriteString(`<th scope="col">` + head + "</th>")
	}
	b.WriteString("</tr></thead><tbody>\n")
	for _, c := range codes.All() {
		status, retry := c.Cells()
		fmt.Fprintf(&b, `<tr id="%s"><td><code>%s</code></td><td>%s</td><td>%s</td><td>%s</td><td>%s.<div class="soft">%s.</div></td></tr>`+
			"\n",
			problem.Anchor(c.Name), c.Name, status, c.AnsweredIn, retry, html.EscapeString(c.Meaning), html.EscapeString(c.Remedy))
	}
	b.WriteString("</tbody></table>")
	return b.String()
}

// hashOf returns the policy hash of the page's only element of that name.
func hashOf(element string) string {
	_, rest, _ := strings.Cut(ReferencePage, "<"+element+">")
	text, _, _ := strings.Cut(rest, "</"+element+">")
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// serveDocument serves the OpenAPI document, which is encoded once, at the first request.
func serveDocument(t *api.Site, media string, write func() ([]byte, error)) http.Handler {
	once := sync.OnceValues(write)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := once()
		if err != nil {
			t.Edge.Refuse(w, r, t.Edge.Problem(r.Context(), err))
			return
		}
		w.Header().Set("Content-Type", media)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	})
}
