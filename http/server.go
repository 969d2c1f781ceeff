// Package http serves HTTP, and is the only package that does. It converts requests to calls of
// commands and projections, and their results to JSON or problem+json. It makes no
// decisions about usage, stores no data and knows no database. Each operation declares
// the kind of key and the scopes that it requires; the service does not start if a declaration is
// missing. Each resource has its own file. Package edge holds the steps before a handler.
package http

import (
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/http/edge"
)

// Handler serves the API. It fails if an operation names no kind of caller.
func (s *Server) Handler() (http.Handler, error) {
	return s.with(operations)
}

// HealthHandler serves only liveness, readiness and metrics, for an instance without the
// API role.
func (s *Server) HealthHandler() (http.Handler, error) {
	return s.with(healthRoutes)
}

// AdminHandler serves liveness, readiness, metrics and profiles of the process. They need no key:
// it is for an address that only operators reach.
func (s *Server) AdminHandler() (http.Handler, error) {
	return s.with(adminRoutes)
}

// NewServer binds a handler to an address, with connection limits. Connection errors are
// logged to the log of the handler's Server.
func NewServer(addr string, handler http.Handler) *http.Server {
	return edge.NewServer(addr, handler)
}

// Server serves its dependencies. It is wired by a struct literal; Handler starts it.
type Server Dependencies

func (s *Server) with(operations func(*site)) (http.Handler, error) {
	t, err := build((*Dependencies)(s), operations)
	if err != nil {
		return nil, err
	}
	return t.handler(), nil
}

// operations registers every route, by subject.
func operations(t *site) {
	usageRoutes(t)
	eventsRoutes(t)
	entitlementsRoutes(t)
	tenantsRoutes(t)
	catalogueRoutes(t)
	repairRoutes(t)
	billingRoutes(t)
	operateRoutes(t)
	t.servePlain(operation{method: http.MethodGet, path: "/", who: auth.Public}, http.RedirectHandler(start(t), http.StatusFound))
	consoleRoutes(t)
}

// Routes is the table of the routes of the API and of the process, as the operations declare them.
func Routes() []auth.Route { return routesOf(func(path string) bool { return !console.IsPath(path) }) }

// ConsoleRoutes is the table of the routes of the console, as its pages declare them.
func ConsoleRoutes() []auth.Route { return routesOf(console.IsPath) }

func routesOf(belongs func(path string) bool) (all []auth.Route) {
	sessions := struct{ commands.ConsoleSessions }{} // no route is called
	for _, r := range declared(&Dependencies{ConsoleSessions: sessions}, operations) {
		if belongs(r.Path) {
			all = append(all, *r)
		}
	}
	return all
}
