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

// Page is one page: its address, the keys that open it, the reads of the API that it renders, and its actions.
type Page struct {
	Path     string // a pattern, below Prefix
	Title    string
	Group    string // one of groups, if it has a name in the navigation
	Menu     string // its name in the navigation; "": a page that others lead to
	New      string // the path of the page of its primary action; "": no such action
	Template string // a file of templates/; "": the form of its first action, below its text
	Text     string
	Needs    string   // the operation of the API without which the page is absent; "": it is always there
	Who      auth.Who // "": operator
	Scopes   []string // nil: those of the operation that it needs
	Params   []string // names of its query parameters
	// CLI names the commands of the command line that show the same; {name} is a parameter of the path or the query, and a command with an
	// absent parameter is left out.
	CLI []string
	// TenantCLI is cli for a tenant's key, if it differs.
	TenantCLI []string
	// Load returns the data of the template; nil: the answer of the operation that the page needs, with the page's parameters and limit. A
	// page that needs a change shows an empty form.
	Load    func(v *Visit) (Doc, error)
	Limit   int // 0: that of the API
	Actions []*Action
	Find    func(v *Visit, q string) ([]Hit, error) // finds results of the search on this page; nil: it is not searched
	Live    *Live                                   // nil: no part of it
	Files   []*File
	// before, if set, sees a request before its session is read. Its error is the answer.
	before func(r *http.Request) error
}

// complete fills the unset values of a page and its actions.
func (p *Page) complete(c *Config) error {
	p.Who = cmp.Or(p.Who, operator)
	if op := c.Operation(p.Needs); op != nil && p.Scopes == nil {
		p.Scopes = op.scopesOf(p.Who)
	}
	p.Template = cmp.Or(p.Template, "new.html")
	if p.Load == nil {
		p.Load = p.read
	}
	if p.Live != nil && p.Live.Load == nil {
		p.Live.Params, p.Live.Load = p.Params, p.Load
	}
	var faults []error
	for _, a := range p.Actions {
		faults = append(faults, a.complete(c))
	}
	return errors.Join(faults...)
}

// read is the load of a page that shows the answer of one operation, or an empty form. The address of a form of which each use makes
// something holds its Idempotency-Key.
func (p *Page) read(v *Visit) (Doc, error) {
	path, reads := strings.CutPrefix(p.Needs, "GET ")
	switch {
	case reads && p.Limit > 0:
		return v.Get(v.Expand(path), Limited(p.Limit, v.Pick(p.Params...)))
	case reads:
		return v.Get(v.Expand(path), v.Pick(p.Params...))
	case slices.Contains(p.Params, "key"):
		return v.Fresh()
	}
	return Doc{}, nil
}

func (p *Page) parameters() []string { return append([]string{"done"}, p.Params...) }

// check returns the faults of a page's declaration.
func (p *Page) check() error {
	route := auth.Route{Method: http.MethodGet, Path: p.Path, Who: p.Who, Scopes: p.Scopes}
	faults := []error{route.Check()}
	if !IsPath(p.Path) || p.Title == "" || len(p.CLI) == 0 {
		faults = append(faults, fmt.Errorf("the page %s lacks its title or cli, or is not below %s", p.Path, Prefix))
	}
	if (p.Menu != "") != slices.Contains(groups, p.Group) {
		faults = append(faults, fmt.Errorf("the page %s is in no group of the navigation", p.Path))
	}
	for _, a := range p.Actions {
		faults = append(faults, a.check(p))
	}
	return errors.Join(faults...)
}

// page serves a page.
func (c *Console) page(p *Page) func(w http.ResponseWriter, r *http.Request) error {
	route := &auth.Route{Method: http.MethodGet, Path: p.Path, Who: p.Who, Scopes: p.Scopes}
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
func (c *Console) show(v *Visit, p *Page, status int, failed *failedAction) error {
	data, err := p.Load(v)
	if refused := (*Refusal)(nil); v.Tenant != nil && errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return absent() // an entity of another tenant does not differ from a page that does not exist
	}
	if err != nil {
		return err
	}
	c.write(v.w, v.r, max(status, v.status), p.Template, &view{c: c, r: v.r, v: v, Visitor: v.visitor, Page: p,
		Title: cmp.Or(Text(data["pageTitle"]), Text(data["name"]), p.Title), Data: data, failed: failed})
	return nil
}

// visit returns the visit of a request whose session may use the route. Another page, and another tenant's, is absent for the key of a
// tenant.
func (c *Console) visit(w http.ResponseWriter, r *http.Request, route *auth.Route) (*Visit, error) {
	visitor, err := c.visitorOf(r)
	if err != nil {
		return nil, err
	}
	edge.ExchangeOf(r.Context()).Keep(visitor.caller.TenantID)
	v := &Visit{c: c, r: r, w: w, visitor: visitor, Query: url.Values{}}
	refused := visitor.allowed(route)
	if visitor.Tenant != nil && (refused != nil || visitor.isOther(v.Param("tenantId"))) {
		return nil, absent()
	}
	if refused != nil {
		return nil, refused
	}
	return v, nil
}

// isOther reports whether an id names another tenant than the visitor's.
func (v *visitor) isOther(tenantID string) bool {
	return v.Tenant != nil && tenantID != "" && tenantID != v.Tenant.ID.String()
}

// read reads the parameters of a request. Another tenant is absent for the key of a tenant.
func (v *Visit) read(raw string, known []string) (err error) {
	if v.Query, err = parseQuery(raw, known); err != nil {
		return err
	}
	if v.isOther(v.Query.Get("tenantId")) {
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

// Pick returns the named parameters of the page that are set, for a request of the API with the same names.
func (v *Visit) Pick(names ...string) url.Values {
	picked := url.Values{}
	for _, name := range names {
		if value := v.Query.Get(name); value != "" {
			picked.Set(name, value)
		}
	}
	return picked
}

const (
	operator = auth.Operator
	Either   = auth.Either
)
