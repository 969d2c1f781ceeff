package http

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/http/console/pages"
)

// consoleRoutes serves the console. It is registered last: its pages are those whose operations the API has.
func consoleRoutes(t *api.Site) {
	if t.ConsoleSessions == nil {
		return
	}
	t.Faults = append(t.Faults, api.DescribeMembers(t.API.OpenAPI())) // forms explain their fields
	pages, err := console.New(console.Config{
		API: inProcess(t), Operation: func(name string) *console.Operation {
			return operationNamed(t, name)
		}, Schemas: t.API.OpenAPI().Components.Schemas,
		Keys: t.Edge.Keys(), Sessions: t.ConsoleSessions, Logger: t.Log, Now: t.Now, Version: domain.Version + ", " + t.Version,
		Frames: t.PortalFrames,
		Pages:  pages.All(), NewToken: func() (token [32]byte) {
			_, _ = rand.Read(token[:]) // never fails
			return token
		},
	})
	if err != nil {
		t.Faults = append(t.Faults, errors.Join(errors.New("the console cannot be served"), err))
		return
	}
	t.Edge.RefuseBy(pages.Refuse)
	for _, row := range pages.Routes() {
		r := t.DeclareRoute(&row.Route)
		handler := t.Edge.Guard(r, nil, nil, row.Handler)
		if r.Method == http.MethodGet { // the answer of a form may hold a new key
			handler = t.Compressed(handler)
		}
		t.Router.Method(r.Method, r.Path, handler)
	}
}

// operationNamed returns an operation of the API to the console; nil if the API does not have it.
func operationNamed(t *api.Site, name string) *console.Operation {
	route := t.Declared[name]
	if route == nil {
		return nil
	}
	op := &console.Operation{Route: route}
	for _, documented := range api.OperationsOf(t.API.OpenAPI()) {
		if documented.Method != route.Method || documented.Path != route.Path || documented.RequestBody == nil {
			continue
		}
		if content := documented.RequestBody.Content[api.MediaJSON]; content != nil {
			op.Body = content.Schema
			if ref := op.Body.Ref; ref != "" {
				op.Body = t.API.OpenAPI().Components.Schemas.SchemaFromRef(ref)
			}
		}
	}
	return op
}

// inProcess serves requests that are made within a request: chi would route them as a part of it.
func inProcess(t *api.Site) http.Handler {
	api := t.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		api.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, nil)))
	})
}

// start is where the address of the service leads a browser.
func start(t *api.Site) string {
	if t.ConsoleSessions == nil {
		return "/docs"
	}
	return console.Prefix
}
