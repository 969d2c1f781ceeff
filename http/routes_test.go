package http

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/internal/must"
)

// handlerWithoutDependencies returns a handler without dependencies.
func handlerWithoutDependencies(t *testing.T, s *Server) http.Handler {
	t.Helper()
	h, err := s.Handler()
	must.OK(t, err)
	return h
}

func TestTheRouteTableHoldsWhatIsServedAndDescribed(t *testing.T) {
	site, err := api.Build(&api.Dependencies{}, operations)
	must.OK(t, err)
	served := map[string]bool{}
	err = chi.Walk(site.Router, func(method, path string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		served[method+" "+path] = true
		return nil
	})
	must.OK(t, err)
	described := map[string]bool{}
	d, _ := describe(t)
	for path, item := range d.Paths {
		for method := range item {
			described[strings.ToUpper(method)+" "+path] = true
		}
	}
	plain := []string{"GET /metrics", "GET /openapi.json", "GET /openapi.yaml", "GET /docs", "GET /"}
	rows := 0
	for _, row := range Routes() {
		if !served[row.Name()] {
			t.Errorf("%s is in the table but is not served", row.Name())
		}
		if described[row.Name()] == slices.Contains(plain, row.Name()) {
			t.Errorf("%s: described is %v", row.Name(), described[row.Name()])
		}
		if row.Who != auth.Public && row.Who != auth.AnyKey && len(row.Scopes) == 0 {
			t.Errorf("%s takes a key but names no scope", row.Name())
		}
		rows++
		delete(served, row.Name())
		delete(described, row.Name())
	}
	if rows < 50 || len(served) > 0 || len(described) > 0 {
		t.Errorf("%d routes; not in the table: served %v, described %v", rows, served, described)
	}
}

// TestAnOperationSaysWhoMayCallIt: the service does not start if one operation does not.
func TestAnOperationSaysWhoMayCallIt(t *testing.T) {
	nobody := func(context.Context, *struct{}) (*struct{}, error) { return &struct{}{}, nil }
	for want, o := range map[string]api.Operation{
		"GET /surprise does not say who may call it": {},
		`its Who is "everybody"`:                     {Who: "everybody", Scopes: []string{"admin"}},
		"takes tenant keys and names no scope":       {Who: auth.Tenant},
		"takes operator keys and names no scope":     {Who: auth.Operator},
		"takes either keys and names no scope":       {Who: auth.Either},
		"is public and names scopes":                 {Who: auth.Public, Scopes: []string{"admin"}},
		"is for any key and names scopes":            {Who: auth.AnyKey, Scopes: []string{"admin"}},
	} {
		o.Method, o.Path, o.ID = "GET", "/surprise", "surprise"
		for kind, register := range map[string]func(*api.Site){
			"serve": func(t *api.Site) { api.Serve(t, o, nobody) },
			"raw": func(t *api.Site) {
				t.ServeRaw(o, func(*huma.Operation, api.Schemas) {}, func(http.ResponseWriter, *http.Request) error { return nil })
			},
			"plain": func(t *api.Site) { t.ServePlain(o, http.NotFoundHandler()) },
		} {
			_, err := (&Server{}).with(func(t *api.Site) { operations(t); register(t) })
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %q: started: %v", kind, want, err)
			}
		}
	}
	for want, register := range map[string]func(*api.Site){
		"GET /livez is declared twice": func(t *api.Site) {
			t.ServePlain(api.Operation{Method: "GET", Path: "/livez", Who: auth.Public}, http.NotFoundHandler())
		},
		"GET /surprise is not in the route table": func(t *api.Site) {
			huma.Register(t.API, huma.Operation{OperationID: "surprise", Method: "GET", Path: "/surprise"}, nobody)
		},
	} {
		_, err := (&Server{}).with(func(t *api.Site) { operations(t); register(t) })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: started: %v", want, err)
		}
	}
}

// Tenant keys are never given operator scopes. A key that has one by mistake still opens
// no operator route.
func TestP9_TenantKeysOpenNoOperatorRoute(t *testing.T) {
	for _, row := range Routes() {
		if row.Who != auth.Tenant && row.Who != auth.Operator {
			continue
		}
		if p := row.Authorize(commands.Caller{Scopes: row.Scopes}, row.Who == auth.Operator); p == nil || p.Status != 403 {
			t.Errorf("%s: a key of the other kind is answered %+v", row.Name(), p)
		}
	}
}
