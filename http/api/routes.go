package api

import (
	"errors"
	"log/slog"
	"time"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

// Prefix is the path of the API. Routes outside it need no key.
const Prefix = "/api/v1"

// Declared returns the route table of operations, without serving them.
func Declared(s *Dependencies, operations func(*Site)) []*auth.Route {
	t := newSite(&Service{Dependencies: s, Edge: new(edge.Edge), Log: slog.New(slog.DiscardHandler), Now: time.Now})
	operations(t)
	return t.routes
}

// declare adds the route of an operation to the table.
func (t *Site) declare(o Operation) *auth.Route {
	r := &auth.Route{Method: o.Method, Path: o.Path, Who: o.Who, Scopes: o.Scopes, Ingest: o.Ingest, Objective: o.Objective,
		Reasoned: o.Reasoned}
	if o.Ingest {
		r.Objective = auth.ObjectiveIngest
	}
	return t.DeclareRoute(r)
}

func (t *Site) DeclareRoute(r *auth.Route) *auth.Route {
	t.routes = append(t.routes, r)
	if t.Faults = append(t.Faults, r.Check()); t.Declared[r.Name()] != nil {
		t.Faults = append(t.Faults, errors.New("the operation "+r.Name()+" is declared twice"))
	}
	t.Declared[r.Name()] = r
	return r
}
