// Package console serves the pages of /console. It is a client of the API: a page sends requests to the API's own handlers, in the process
// and with the key of the session, and renders their answers. So it holds no SQL and no rule, and a page can show no more than its key may
// read. The packages below it have the pages, by subject; package pages lists them.
package console

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
)

// Prefix is the path of all pages.
const Prefix = "/console"

// Config holds the dependencies of the console. All fields are required.
type Config struct {
	// API answers the requests of the API. The context of a request holds its key (auth.WithKey).
	API http.Handler
	// Operation returns an operation of the API, as "GET /api/v1/tenants"; nil if it is absent. A page of a feature that is not built is
	// absent.
	Operation func(name string) *Operation
	Pages     []*Page       // besides the search
	Schemas   huma.Registry // of the members of operations
	Keys      *auth.Authenticator
	Sessions  commands.ConsoleSessions
	Logger    *slog.Logger
	Now       func() time.Time
	NewToken  func() [32]byte // random
	Version   string          // of the release, and the commit
	Frames    []string        // origins that may embed the page of a link for a tenant's people
}

// Console serves pages.
type Console struct {
	Config
	pages     []*Page // those whose feature is built, in the order of the navigation
	templates *templates
	refused   attempts // to sign in, by address
	opened    attempts // sessions, by key
	reading   edge.Slow
	fragments fragments
	names     knownNames
}

// Route is a row of the route table, with its handler.
type Route struct {
	auth.Route
	Handler http.Handler
}

// New fails if a page, a template or an asset is faulty.
func New(c Config) (*Console, error) {
	s := &Console{Config: c, refused: attempts{most: 10}, opened: attempts{most: 30}, reading: edge.Slow{Most: maxReading},
		fragments: fragments{all: map[string]*fragment{}}}
	faults := []error{checkAssets()}
	for _, p := range append(c.Pages, searchPage()) {
		if p.Needs == "" || c.Operation(p.Needs) != nil {
			faults = append(faults, p.complete(&c))
			s.pages = append(s.pages, p)
		}
	}
	var err error
	if s.templates, err = parseTemplates(s.pages); err != nil {
		return nil, err
	}
	for _, p := range s.pages {
		faults = append(faults, p.check())
	}
	return s, errors.Join(faults...)
}

// Routes returns the rows of the console in the route table.
func (c *Console) Routes() []Route {
	all := append(c.assetRoutes(), c.sessionRoutes()...)
	for _, p := range c.pages {
		all = append(all, Route{auth.Route{Method: http.MethodGet, Path: p.Path, Who: p.Who, Scopes: p.Scopes, Session: true},
			c.handler(c.page(p))})
		for _, a := range p.Actions {
			all = append(all, Route{auth.Route{Method: http.MethodPost, Path: a.Path, Who: a.Who, Scopes: a.scopes, Session: true},
				c.handler(c.action(p, a))})
		}
		for _, f := range p.Files {
			all = append(all, Route{auth.Route{Method: http.MethodGet, Path: f.Path, Who: p.Who, Scopes: p.Scopes, Session: true},
				c.handler(c.file(p, f))})
		}
		if p.Live != nil {
			all = append(all, Route{auth.Route{Method: http.MethodGet, Path: p.Path + liveSuffix, Who: p.Who, Scopes: p.Scopes,
				Session: true}, c.handler(c.live(p))})
		}
	}
	return all
}

// handler sets the headers of every answer, and writes the error of serve as a page.
func (c *Console) handler(serve func(w http.ResponseWriter, r *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setHeaders(w.Header())
		err := serve(w, r)
		if to := (*elsewhere)(nil); errors.As(err, &to) {
			http.Redirect(w, r, to.address, http.StatusSeeOther)
		} else if err != nil {
			c.refuse(w, r, c.refusalOf(r, err))
		}
	})
}

// Refuse writes a problem of a request for the console as a page. It reports false for other requests.
func (c *Console) Refuse(w http.ResponseWriter, r *http.Request, p *problem.Problem) bool {
	if !IsPath(r.URL.Path) {
		return false
	}
	setHeaders(w.Header())
	if p.Code == "not_found" {
		p = absent().For(p.TraceID, r.URL)
	}
	c.refuse(w, r, &Refusal{Problem: *p})
	return true
}

// IsPath reports whether a path belongs to the console.
func IsPath(path string) bool {
	return path == Prefix || len(path) > len(Prefix) && path[:len(Prefix)+1] == Prefix+"/"
}

// policy allows only the console's own scripts and styles, and no other site to frame it or to get its forms.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
}
