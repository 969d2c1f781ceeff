package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
)

// Refusal is a problem of the API, or of the console itself, as an error of a page.
type Refusal struct {
	problem.Problem
	// signIn is set if the page shows the form to sign in.
	signIn bool
}

func (r *Refusal) Error() string { return r.Code + ": " + r.Detail }

// absent is the error of every page that does not exist, or that the key may not open.
func absent() *problem.Problem {
	return problem.New("not_found", "No page has this address. The navigation lists the pages")
}

// refusalOf converts an error of a page. It logs the cause, unless only the visitor is at fault.
func (c *Console) refusalOf(r *http.Request, err error) *Refusal {
	if ours, ok := err.(*Refusal); ok {
		return ours
	}
	if err == errSignedOut {
		p := problem.New("unauthenticated", "Sign in with a key")
		return &Refusal{Problem: *p.For(edge.ExchangeOf(r.Context()).TraceID(), r.URL), signIn: true}
	}
	p, cause := problem.Of(err)
	if cause != nil && r.Context().Err() == nil {
		c.Logger.ErrorContext(r.Context(), "a page of the console failed", "path", logged(r), "trace",
			edge.ExchangeOf(r.Context()).TraceID(), "error", cause)
	}
	return &Refusal{Problem: *p.For(edge.ExchangeOf(r.Context()).TraceID(), r.URL)}
}

// logged returns the path of a request for the log, without the token of a link.
func logged(r *http.Request) string {
	for _, secret := range []string{linksPath, commands.PortalPath} {
		if strings.HasPrefix(r.URL.Path, secret) {
			return secret
		}
	}
	return r.URL.Path
}

// refusalIn decodes the problem that the API answered.
func refusalIn(status int, body []byte) error {
	r := &Refusal{}
	if err := json.Unmarshal(bytes.TrimSpace(body), &r.Problem); err != nil || r.Code == "" {
		r.Problem = *problem.New("internal", "The API gave an answer that is not understood")
	}
	r.Status = status
	return r
}

// refuse writes a refusal as a page: with the navigation if the visitor is known.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, p *Refusal) {
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	w.Header().Del("WWW-Authenticate") // a browser would ask for a password
	name, title, v := "signin.html", "Sign in", (*visitor)(nil)
	if !p.signIn {
		name, title = "problem.html", p.Title
		v, _ = c.visitorOf(r) // without it, the page has no navigation
	}
	c.write(w, r, p.Status, name, &view{c: c, r: r, Visitor: v, Title: title, Problem: p, Data: signInData(r)})
}
