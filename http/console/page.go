package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/http/shape"
)

// page is one page: its address, the keys that open it, the reads of the API that it renders, and its actions.
type page struct {
	path     string // a pattern, below Prefix
	title    string
	menu     string // its name in the navigation; "": a page that others lead to
	template string // a file of templates/; "": the form of its first action, below its text
	text     string
	needs    string   // the operation of the API without which the page is absent; "": it is always there
	who      auth.Who // "": operator
	scopes   []string // nil: those of the operation that it needs
	params   []string // names of its query parameters
	// cli names the commands of the command line that show the same; {name} is a parameter of the path or the query, and a command with an absent
	// parameter is left out.
	cli []string
	// tenantCLI is cli for a tenant's key, if it differs.
	tenantCLI []string
	// load returns the data of the template; nil: the answer of the operation that the page needs, with the page's parameters and limit. A page that needs
	// a change shows an empty form.
	load    func(v *visit) (doc, error)
	limit   int // 0: that of the API
	actions []*action
	live    *live // nil: no part of it
	files   []*file
	// before, if set, sees a request before its session is read. Its error is the answer.
	before func(r *http.Request) error
}

// complete sets what a page, and its actions, do not differ in.
func (p *page) complete(c *Config) error {
	p.who = cmp.Or(p.who, operator)
	if op := c.Operation(p.needs); op != nil && p.scopes == nil {
		p.scopes = op.scopesOf(p.who)
	}
	p.template = cmp.Or(p.template, "new.html")
	if p.load == nil {
		p.load = p.read
	}
	if p.live != nil && p.live.load == nil {
		p.live.params, p.live.load = p.params, p.load
	}
	var faults []error
	for _, a := range p.actions {
		faults = append(faults, a.complete(c))
	}
	return errors.Join(faults...)
}

// read is the load of a page that shows the answer of one operation, or an empty form. The address of a form of which each use makes something holds its
// Idempotency-Key.
func (p *page) read(v *visit) (doc, error) {
	path, reads := strings.CutPrefix(p.needs, "GET ")
	switch {
	case reads && p.limit > 0:
		return v.get(v.expand(path), limited(p.limit, v.pick(p.params...)))
	case reads:
		return v.get(v.expand(path), v.pick(p.params...))
	case slices.Contains(p.params, "key"):
		return v.fresh()
	}
	return doc{}, nil
}

func (p *page) parameters() []string { return append([]string{"done"}, p.params...) }

// check returns the faults of a page's declaration.
func (p *page) check() error {
	route := auth.Route{Method: http.MethodGet, Path: p.path, Who: p.who, Scopes: p.scopes}
	faults := []error{route.Check()}
	if !IsPath(p.path) || p.title == "" || len(p.cli) == 0 {
		faults = append(faults, fmt.Errorf("the page %s lacks its title or cli, or is not below %s", p.path, Prefix))
	}
	for _, a := range p.actions {
		faults = append(faults, a.check(p))
	}
	return errors.Join(faults...)
}

// page serves a page.
func (c *Console) page(p *page) func(w http.ResponseWriter, r *http.Request) error {
	route := &auth.Route{Method: http.MethodGet, Path: p.path, Who: p.who, Scopes: p.scopes}
	return func(w http.ResponseWriter, r *http.Request) error {
		if p.before != nil {
			if err := p.before(r); err != nil {
				return err
			}
		}
		v, err := c.visit(w, r, route)
		if err != nil {
			return err
		}
		if err = v.read(r.URL.RawQuery, p.parameters()); err != nil {
			return err
		}
		if err := c.used(r, v.visitor); err != nil {
			return err
		}
		return c.show(v, p, http.StatusOK, nil)
	}
}

// show loads and writes a page, with the problem of an action if there is one.
func (c *Console) show(v *visit, p *page, status int, failed *failedAction) error {
	data, err := p.load(v)
	if refused := (*refusal)(nil); v.tenant != nil && errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return absent() // an entity of another tenant does not differ from a page that does not exist
	}
	if err != nil {
		return err
	}
	c.write(v.w, v.r, max(status, v.status), p.template, &view{c: c, r: v.r, v: v, Visitor: v.visitor, Page: p, Title: p.title, Data: data, failed: failed})
	return nil
}

// visit returns the visit of a request whose session may use the route. Another page, and another tenant's, is absent for the key of a tenant.
func (c *Console) visit(w http.ResponseWriter, r *http.Request, route *auth.Route) (*visit, error) {
	visitor, err := c.visitorOf(r)
	if err != nil {
		return nil, err
	}
	edge.ExchangeOf(r.Context()).Keep(visitor.caller.TenantID)
	v := &visit{c: c, r: r, w: w, visitor: visitor, query: url.Values{}}
	refused := visitor.allowed(route)
	if visitor.tenant != nil && (refused != nil || visitor.isOther(v.param("tenantId"))) {
		return nil, absent()
	}
	if refused != nil {
		return nil, refused
	}
	return v, nil
}

// isOther reports whether an id names another tenant than the visitor's.
func (v *visitor) isOther(tenantID string) bool {
	return v.tenant != nil && tenantID != "" && tenantID != v.tenant.ID.String()
}

// read reads the parameters of a request. Another tenant is absent for the key of a tenant.
func (v *visit) read(raw string, known []string) (err error) {
	if v.query, err = parseQuery(raw, known); err != nil {
		return err
	}
	if v.isOther(v.query.Get("tenantId")) {
		return absent()
	}
	return nil
}

// parseQuery returns the parameters that are not empty: a form sends its empty fields, too.
func parseQuery(raw string, known []string) (url.Values, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, problem.New("malformed_query", "The query is not name=value pairs joined by &, percent-encoded")
	}
	for name, of := range values {
		of = slices.DeleteFunc(of, func(value string) bool { return strings.TrimSpace(value) == "" })
		if values[name] = of; len(of) == 0 && slices.Contains(known, name) {
			delete(values, name)
		}
	}
	params := make([]*huma.Param, len(known))
	for i, name := range known {
		params[i] = &huma.Param{Name: name, In: "query", Schema: &huma.Schema{Type: huma.TypeString}}
	}
	if p := shape.NewQuery(&huma.Operation{Parameters: params}).Check(values.Encode()); p != nil {
		return nil, p
	}
	return values, nil
}

// pick returns the named parameters of the page that are set, for a request of the API with the same names.
func (v *visit) pick(names ...string) url.Values {
	picked := url.Values{}
	for _, name := range names {
		if value := v.query.Get(name); value != "" {
			picked.Set(name, value)
		}
	}
	return picked
}
