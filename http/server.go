// Package http serves HTTP, and is the only package that does. It converts requests to calls of
// commands and projections, and their results to JSON or problem+json. It makes no
// decisions about usage, stores no data and knows no database. Each operation declares
// the kind of key and the scopes that it requires; the service does not start if a declaration is
// missing. The packages below it have the operations, by subject; package api their shared parts, package edge the steps before a handler.
package http

import (
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/billing"
	"github.com/meterplex/meterplex/http/catalogue"
	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/entitlements"
	"github.com/meterplex/meterplex/http/events"
	"github.com/meterplex/meterplex/http/operate"
	"github.com/meterplex/meterplex/http/repair"
	"github.com/meterplex/meterplex/http/tenants"
	"github.com/meterplex/meterplex/http/usage"
)

// Handler serves the API. It fails if an operation names no kind of caller.
func (s *Server) Handler() (http.Handler, error) {
	return s.with(operations)
}

// HealthHandler serves only liveness, readiness and metrics, for an instance without the
// API role.
func (s *Server) HealthHandler() (http.Handler, error) {
	return s.with(operate.HealthRoutes)
}

// AdminHandler serves liveness, readiness, metrics and profiles of the process. They need no key:
// it is for an address that only operators reach.
func (s *Server) AdminHandler() (http.Handler, error) {
	return s.with(operate.AdminRoutes)
}

// NewServer binds a handler to an address, with connection limits. Connection errors are
// logged to the log of the handler's Server.
func NewServer(addr string, handler http.Handler) *http.Server {
	return edge.NewServer(addr, handler)
}

// Server serves its dependencies. It is wired by a struct literal; Handler starts it.
type Server api.Dependencies

func (s *Server) with(operations func(*api.Site)) (http.Handler, error) {
	t, err := api.Build((*api.Dependencies)(s), operations)
	if err != nil {
		return nil, err
	}
	return t.Handler(), nil
}

// operations registers every route, by subject.
func operations(t *api.Site) {
	usage.Routes(t)
	events.Routes(t)
	entitlements.Routes(t)
	tenants.Routes(t)
	catalogue.Routes(t)
	repair.Routes(t)
	billing.Routes(t)
	operate.Routes(t)
	t.ServePlain(api.Operation{Method: http.MethodGet, Path: "/", Who: auth.Public}, http.RedirectHandler(start(t), http.StatusFound))
	consoleRoutes(t)
}

// Routes is the table of the routes of the API and of the process, as the operations declare them.
func Routes() []auth.Route { return routesOf(func(path string) bool { return !console.IsPath(path) }) }

// ConsoleRoutes is the table of the routes of the console, as its pages declare them.
func ConsoleRoutes() []auth.Route { return routesOf(console.IsPath) }

func routesOf(belongs func(path string) bool) (all []auth.Route) {
	sessions := struct{ commands.ConsoleSessions }{} // no route is called
	for _, r := range api.Declared(&api.Dependencies{ConsoleSessions: sessions}, operations) {
		if belongs(r.Path) {
			all = append(all, *r)
		}
	}
	return all
}
