package http

import (
	"errors"
	"fmt"
)

// Who is the kind of caller that may use a route.
type Who string

// Public routes need no key; the others name the kind of key that they accept.
const (
	Public   Who = "public"
	Tenant   Who = "tenant"
	Operator Who = "operator"
	Either   Who = "either"
)

// Route is what a caller needs for one operation. A key needs one of the scopes; admin
// includes the other operator scopes.
type Route struct {
	Method, Path string
	Who          Who
	Scopes       []string
	Ingest       bool // ingest has its own limit of requests in flight
}

func (r *Route) name() string { return r.Method + " " + r.Path }

// check refuses a route that does not say who may call it.
func (r *Route) check() error {
	switch r.Who {
	case Public:
		if len(r.Scopes) > 0 {
			return fmt.Errorf("the operation %s is public and names scopes", r.name())
		}
	case Tenant, Operator, Either:
		if len(r.Scopes) == 0 {
			return fmt.Errorf("the operation %s takes %s keys and names no scope", r.name(), r.Who)
		}
	default:
		return fmt.Errorf("the operation %s does not say who may call it: its Who is %q", r.name(), r.Who)
	}
	return nil
}

// prefix is the path of the API. Routes outside it need no key.
const prefix = "/api/v1"

// Routes is the table of all routes, as the operations declare them.
func Routes() []Route {
	t := newSite(&service{Server: &Server{}})
	t.operations()
	all := make([]Route, len(t.routes))
	for i, r := range t.routes {
		all[i] = *r
	}
	return all
}

// declare adds the route of an operation to the table.
func (t *site) declare(o operation) *Route {
	r := &Route{Method: o.method, Path: o.path, Who: o.who, Scopes: o.scopes, Ingest: o.ingest}
	t.routes = append(t.routes, r)
	if t.faults = append(t.faults, r.check()); t.declared[r.name()] != nil {
		t.faults = append(t.faults, errors.New("the operation "+r.name()+" is declared twice"))
	}
	t.declared[r.name()] = r
	return r
}
