package http

import (
	"errors"
	"log/slog"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

// prefix is the path of the API. Routes outside it need no key.
const prefix = "/api/v1"

// Routes is the table of all routes, as the operations declare them.
func Routes() []auth.Route {
	t := newSite(&service{Server: &Server{ConsoleSessions: struct{ commands.ConsoleSessions }{}}, edge: new(edge.Edge), log: slog.New(slog.DiscardHandler), now: time.Now})
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
