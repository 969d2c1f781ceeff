package http

import (
	"errors"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

// prefix is the path of the API. Routes outside it need no key.
const prefix = "/api/v1"

// Routes is the table of all routes, as the operations declare them.
func Routes() []auth.Route {
	t := newSite(&service{Server: &Server{}, edge: new(edge.Edge)})
	t.operations()
	all := make([]auth.Route, len(t.routes))
	for i, r := range t.routes {
		all[i] = *r
	}
	return all
}

// declare adds the route of an operation to the table.
func (t *site) declare(o operation) *auth.Route {
	r := &auth.Route{Method: o.method, Path: o.path, Who: o.who, Scopes: o.scopes, Ingest: o.ingest, Objective: o.objective}
	if o.ingest {
		r.Objective = auth.ObjectiveIngest
	}
	t.routes = append(t.routes, r)
	if t.faults = append(t.faults, r.Check()); t.declared[r.Name()] != nil {
		t.faults = append(t.faults, errors.New("the operation "+r.Name()+" is declared twice"))
	}
	t.declared[r.Name()] = r
	return r
}
