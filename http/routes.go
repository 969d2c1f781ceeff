package http

import (
	"errors"
	"log/slog"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/http/edge"
)

// prefix is the path of the API. Routes outside it need no key.
const prefix = "/api/v1"

// Routes is the table of the routes of the API and of the process, as the operations declare them.
func Routes() []auth.Route { return routesOf(func(path string) bool { return !console.IsPath(path) }) }

// ConsoleRoutes is the table of the routes of the console, as its pages declare them.
func ConsoleRoutes() []auth.Route { return routesOf(console.IsPath) }

func routesOf(belongs func(path string) bool) (all []auth.Route) {
	sessions := struct{ commands.ConsoleSessions }{} // no route is called
	t := newSite(&service{Server: &Server{ConsoleSessions: sessions}, edge: new(edge.Edge), log: slog.New(slog.DiscardHandler), now: time.Now})
	t.operations()
	for _, r := range t.routes {
		if belongs(r.Path) {
			all = append(all, *r)
		}
	}
	return all
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
