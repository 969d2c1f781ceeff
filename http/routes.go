package http

import "errors"

// prefix is the path of the API. Routes outside it need no key.
const prefix = "/api/v1"

// Routes is the table of all routes, as the operations declare them.
func Routes() []Route {
	t := newSite(&service{Server: &Server{}, edge: new(edge)})
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
