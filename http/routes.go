package http

import (
	"errors"
	"log/slog"
	"time"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

// prefix is the path of the API. Routes outside it need no key.
const prefix = "/api/v1"

// declared returns the route table of operations, none of which is served.
func declared(s *Dependencies, operations func(*site)) []*auth.Route {
	t := newSite(&service{Dependencies: s, edge: new(edge.Edge), log: slog.New(slog.DiscardHandler), now: time.Now})
	operations(t)
	return t.routes
}

// declare adds the route of an operation to the table.
func (t *site) declare(o operation) *auth.Route {
	r := &auth.Route{Method: o.method, Path: o.path, Who: o.who, Scopes: o.scopes, Ingest: o.ingest, Objective: o.objective, Reasoned: o.reasoned}
	if o.ingest {
		r.Objective = auth.ObjectiveIngest
	}
	return t.declareRoute(r)
}

func (t *site) declareRoute(r *auth.Route) *auth.Route {
	t.routes = append(t.routes, r)
	if t.faults = append(t.faults, r.Check()); t.declared[r.Name()] != nil {
		t.faults = append(t.faults, errors.New("the operation "+r.Name()+" is declared twice"))
	}
	t.declared[r.Name()] = r
	return r
}
