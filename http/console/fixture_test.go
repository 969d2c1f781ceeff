package console

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/internal/must"
)

const (
	operatorKey  = "mp_op_0123456789abcdef0123456789abcdef"
	suspendedKey = "mp_live_0123456789abcdef0123456789abcdef"
)

// explainNeeds is the operation of the page of the events behind a figure.
const explainNeeds = "GET /api/v1/usage/aggregates/explain"

var explainParams = []string{"tenantId", "feature", "period", "cursor"}

// fixture is a console with sessions in memory and an API that a test writes. Its page /console/live has a live part.
type fixture struct {
	*Console
	routes  map[string]http.Handler
	open    *memory
	session string // the cookie of an operator
	api     http.HandlerFunc
	now     func() time.Time
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{open: &memory{sessions: map[[32]byte]commands.ConsoleSession{}}, routes: map[string]http.Handler{}, now: time.Now}
	keys, err := auth.New(ring{}, operatorKey, time.Now)
	must.OK(t, err)
	f.Console, err = New(Config{API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.api(w, r)
	}), Operation: func(name string) *Operation {
		if name != explainNeeds {
			return nil
		}
		return &Operation{Route: &auth.Route{Scopes: []string{"usage:read", "billing", "audit"}}}
	},
		Pages: []*Page{{Path: Prefix + "/usage/explain", Title: "Events behind a figure", Template: "explain.html", Needs: explainNeeds,
			Who:    Either,
			Params: explainParams, CLI: []string{"x"}, Load: func(v *Visit) (Doc, error) {
				return v.Main(API("usage", "aggregates", "explain"), v.Pick(explainParams...))
			}}},
		Keys: keys, Sessions: f.open, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return f.now() },
		NewToken: func() [32]byte { return sha256.Sum256([]byte(t.Name())) }, Version: "test"})
	must.OK(t, err)
	f.pages = append(f.pages, &Page{Path: Prefix + "/live", Title: "Live", Template: "signin.html", Who: operator,
		Scopes: []string{"admin"}, CLI: []string{"x"},
		Load: func(*Visit) (Doc, error) { return Doc{}, nil },
		Live: &Live{Params: []string{"filter"}, Template: "empty", Load: func(v *Visit) (Doc, error) {
			return v.Get(API("live"), v.Pick("filter"))
		},
			Version: func(v *Visit) (string, error) {
				got, err := v.send(Request{Method: http.MethodGet, Path: API("live", "version")})
				if err != nil {
					return "", err
				}
				return got.body.String(), nil
			}}})
	for _, r := range f.Routes() {
		f.routes[r.Name()] = r.Handler
	}
	token := sha256.Sum256([]byte("a session"))
	f.session = cookieName + "=" + encodeToken(token)
	_ = f.open.OpenSession(t.Context(), sha256.Sum256(token[:]), auth.BootstrapSessionKey(operatorKey), time.Now())
	return f
}

func (f *fixture) serve(w http.ResponseWriter, r *http.Request) {
	pattern := r.URL.Path
	if link, found := strings.CutPrefix(pattern, linksPath); found {
		pattern = linkPath
		r.SetPathValue("link", link)
	}
	f.routes[r.Method+" "+pattern].ServeHTTP(w, r)
}

func (f *fixture) Get(path, cookie string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
	if cookie != "" {
		r.Header.Set("Cookie", cookie)
	}
	f.serve(w, r)
	return w
}

// post sends a form.
func (f *fixture) post(path, cookie string, values url.Values, header ...string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, strings.NewReader(values.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if cookie != "" {
		r.Header.Set("Cookie", cookie)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	f.serve(w, r)
	return w
}

// ring is catalogue.Keyring with one key, of a suspended tenant: suspendedKey.
type ring struct{}

func (ring) Find(_ context.Context, hash [32]byte) (*domain.APIKey, *domain.Tenant, commands.CatalogueAt, error) {
	if hash != catalogue.HashSecret(suspendedKey) {
		return nil, nil, commands.CatalogueAt{}, nil
	}
	tenant := uuid.Must(uuid.NewV7())
	return &domain.APIKey{APIKey: events.APIKey{ID: uuid.Must(uuid.NewV7()), TenantID: tenant}},
		&domain.Tenant{ID: tenant, Status: domain.TenantSuspended}, commands.CatalogueAt{}, nil
}

// memory is commands.ConsoleSessions for tests of one process.
type memory struct {
	commands.ConsoleSessions
	mu       sync.Mutex
	sessions map[[32]byte]commands.ConsoleSession
}

func (m *memory) OpenSession(_ context.Context, token [32]byte, key uuid.UUID, at time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions[token] = commands.ConsoleSession{KeyID: key, CreatedAt: at, UsedAt: at}
	return nil
}

func (m *memory) Session(_ context.Context, token [32]byte) (*commands.ConsoleSession, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, found := m.sessions[token]; found {
		return &s, nil
	}
	return nil, nil
}

func (m *memory) UseSession(_ context.Context, token [32]byte, at time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[token]
	s.UsedAt = at
	m.sessions[token] = s
	return nil
}

// dial connects to a server of the console.
func (f *fixture) dial(t *testing.T) net.Conn {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	must.OK(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // before the server
	return conn
}
