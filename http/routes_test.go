package http

import (
	"encoding/json"
	nethttp "net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
)

// bare returns a handler without dependencies.
func bare(t *testing.T, s *Server) nethttp.Handler {
	t.Helper()
	h, err := s.Handler()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestEveryRouteHasARowAndIsDescribed(t *testing.T) {
	h := bare(t, &Server{}).(*edge)
	served := map[string]bool{}
	err := chi.Walk(h.next.(*chi.Mux), func(method, path string, _ nethttp.Handler, _ ...func(nethttp.Handler) nethttp.Handler) error {
		served[method+" "+path] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	described := describedRoutes(t, h)
	plain := []string{"GET /metrics", "GET /openapi.json", "GET /openapi.yaml", "GET /docs"}
	for _, row := range Routes() {
		if !served[row.name()] {
			t.Errorf("%s has a row but is not served", row.name())
		}
		if described[row.name()] == slices.Contains(plain, row.name()) {
			t.Errorf("%s: described is %v", row.name(), described[row.name()])
		}
		if row.Who != Public && len(row.Scopes) == 0 {
			t.Errorf("%s takes a key but names no scope", row.name())
		}
		delete(served, row.name())
		delete(described, row.name())
	}
	if len(served) > 0 || len(described) > 0 {
		t.Errorf("without a row: served %v, described %v", served, described)
	}
}

func describedRoutes(t *testing.T, h nethttp.Handler) map[string]bool {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for path, item := range doc.Paths {
		for method := range item {
			described[strings.ToUpper(method)+" "+path] = true
		}
	}
	return described
}

func TestARouteWithoutARowDoesNotStart(t *testing.T) {
	svc := &service{Server: &Server{}}
	site := newSite(svc, Routes())
	site.servePlain("/surprise", nethttp.NotFoundHandler())
	err := site.finish()
	if err == nil || !strings.Contains(err.Error(), "GET /surprise has no row") || !strings.Contains(err.Error(), "POST /api/v1/usage/events, which no handler serves") {
		t.Errorf("started: %v", err)
	}
}
