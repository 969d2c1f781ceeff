package http_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/internal/must"
)

// An instance without the API role serves health and metrics like any other, and no other
// route.
func TestHealthWithoutTheAPI(t *testing.T) {
	registry := prometheus.NewRegistry()
	var away error
	s := &http.Server{
		Health:  []api.HealthCheck{{Name: "database", Check: func(context.Context) error { return away }}},
		Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), Registerer: registry, Version: "test",
	}
	handler, err := s.HealthHandler()
	must.OK(t, err)
	ask := func(path string, status int, holds string) {
		t.Helper()
		got := httptest.NewRecorder()
		handler.ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		if got.Code != status || !strings.Contains(got.Body.String(), holds) {
			t.Errorf("%s: %d %s", path, got.Code, got.Body)
		}
	}
	ask("/livez", 200, `"live"`)
	ask("/readyz", 200, `"database":"ok"`)
	ask("/metrics", 200, "meterplex_http_requests_total")
	for _, path := range []string{"/", "/docs", "/openapi.json", "/api/v1/tenants", "/api/v1/usage/events"} {
		ask(path, 404, `"code":"not_found"`)
	}
	away = errors.New("gone")
	ask("/readyz", 503, `"detail":"database"`)
	ask("/livez", 200, `"live"`)
	away = fmt.Errorf("postgres.internal: %w", refused{errors.New("the login meter is wrong")})
	ask("/readyz", 503, `"detail":"These dependencies do not answer: database: authentication failed"`)
}

// refused is the error of a refused connection.
type refused struct{ error }

func (refused) Reason() string { return "authentication failed" }

// A dependency that costs only latency while it is down is reported, but the instance
// stays ready. Its check has a shorter timeout than that of a required dependency.
func TestP11_ReadyWithoutOptionalDependencies(t *testing.T) {
	var database error
	s := &http.Server{Version: "test", Health: []api.HealthCheck{
		{Name: "kafka", Spare: true, Check: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
		{Name: "database", Check: func(context.Context) error { return database }},
	}}
	handler, err := s.HealthHandler()
	must.OK(t, err)
	for _, c := range []struct {
		away   error
		status int
		holds  string
	}{
		{nil, 200, `"dependencies":{"database":"ok","kafka":"does not answer"}`},
		{errors.New("gone"), 503, `"detail":"These dependencies do not answer: database"`},
	} {
		database = c.away
		got := httptest.NewRecorder()
		handler.ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil))
		if got.Code != c.status || !strings.Contains(got.Body.String(), c.holds) {
			t.Errorf("%d %s, want %d with %s", got.Code, got.Body, c.status, c.holds)
		}
	}
}

// With an admin address, health and metrics are served there alone. The profiles are served nowhere
// else, and never with the command line, which may hold keys.
func TestTheAdminAddressServesHealthMetricsAndProfiles(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := &http.Server{Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), Registerer: registry, Version: "test"}
	whole, err := s.Handler()
	must.OK(t, err)
	s.Registerer, s.AdminElsewhere = nil, true
	public, err := s.Handler()
	must.OK(t, err)
	admin, err := s.AdminHandler()
	must.OK(t, err)
	for path, status := range map[string][3]int{ // alone, beside an admin address, at the admin address
		"/livez": {200, 404, 200}, "/readyz": {200, 404, 200}, "/metrics": {200, 404, 200}, "/docs": {200, 200, 404},
		"/api/v1/tenants": {401, 401, 404},
		"/debug/pprof/":   {404, 404, 200}, "/debug/pprof/goroutine?debug=1": {404, 404, 200}, "/debug/pprof/heap": {404, 404, 200},
		"/debug/pprof/cmdline": {404, 404, 404}, "/debug/pprof/profile?seconds=x": {404, 404, 400},
		"/debug/pprof/heap?x=1": {404, 404, 400},
	} {
		for i, handler := range []nethttp.Handler{whole, public, admin} {
			got := httptest.NewRecorder()
			handler.ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
			if got.Code != status[i] {
				t.Errorf("%s of handler %d: %d %s, want %d", path, i, got.Code, got.Body, status[i])
			}
		}
	}
}

// Metrics need no key: at an address of the internet they are refused, wherever the client is. The admin address is for operators alone,
// and serves them.
func TestMetricsAreRefusedAtAPublicAddress(t *testing.T) {
	s := &http.Server{Metrics: promhttp.HandlerFor(prometheus.NewRegistry(), promhttp.HandlerOpts{}), Version: "test"}
	handlers := map[string]nethttp.Handler{}
	for name, build := range map[string]func() (nethttp.Handler, error){"api": s.Handler, "health": s.HealthHandler,
		"admin": s.AdminHandler} {
		handler, err := build()
		must.OK(t, err)
		handlers[name] = handler
	}
	for address, public := range map[string]bool{"127.0.0.1": false, "::1": false, "10.4.0.7": false, "172.16.3.4": false,
		"192.168.0.9": false, "100.64.0.3": false, "fd00::7": false, "fe80::1": false,
		"169.254.3.4": false, "::ffff:10.0.0.1": false, "203.0.113.7": true, "8.8.8.8": true, "100.128.0.1": true, "172.32.0.1": true,
		"::ffff:8.8.8.8": true, "2001:4860:4860::8888": true} {
		for name, handler := range handlers {
			for path, want := range map[string]int{"/livez": 200,
				"/metrics": map[bool]int{false: 200, true: 404}[public && name != "admin"]} {
				ctx := context.WithValue(t.Context(), nethttp.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(address), Port: 8080})
				got := httptest.NewRecorder()
				handler.ServeHTTP(got, httptest.NewRequestWithContext(ctx, "GET", path, nil))
				if got.Code != want || got.Code == 404 && !strings.Contains(got.Body.String(), "METERPLEX_ADMIN_ADDR") {
					t.Errorf("%s of %s at %s: %d %s", path, name, address, got.Code, got.Body)
				}
			}
		}
	}
}
