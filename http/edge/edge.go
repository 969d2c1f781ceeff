// Package edge holds the steps of a request before its handler: it accepts the connection, sets the
// request id, applies the limits, and checks the key, the query and the body. It answers the requests that
// it refuses. It knows no operation.
package edge

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/body"
	"github.com/meterplex/meterplex/http/problem"
)

// Edge admits the requests of one Server, and counts the resources that they use.
type Edge struct {
	limits      admission.Limits
	log         *slog.Logger
	now         func() time.Time
	newID       func(now time.Time) uuid.UUID
	keys        *auth.Authenticator
	bodies      *body.Reader
	metrics     *requestMetrics
	rates       *admission.Rates
	ratePolicy  []string // the header
	ingest      admission.Kind
	other       admission.Kind
	awaited     admission.Counter // requests without a slot that wait for their body
	streams     admission.Bound   // of the log
	connections *connections
	uncharged   Slow
	idle        time.Duration // of a connection
	spans       Spans         // may be nil
	leaving     chan struct{} // closed when the server shuts down, to end streams
	left        sync.Once
	refusals    func(w http.ResponseWriter, r *http.Request, p *problem.Problem) bool
}

// Config holds the dependencies of an edge. Keys is required if a route takes keys; other
// zero fields have defaults.
type Config struct {
	Keys                 catalogue.Keyring
	BootstrapOperatorKey string
	Limits               admission.Limits
	MaxConnections       int64 // open client connections
	AddressConnections   int64 // open connections of one address; 0: as many as of all
	IdleTime             time.Duration
	Logger               *slog.Logger
	Now                  func() time.Time
	NewID                func(now time.Time) uuid.UUID
	Registerer           prometheus.Registerer
	Spans                Spans // nil: requests have no spans
}

// Spans connects requests with their spans.
type Spans interface {
	// Trace returns the trace of the request's span.
	Trace(ctx context.Context) (uuid.UUID, bool)
	// Routed names the span of the request by the pattern of its route.
	Routed(ctx context.Context, method, pattern string)
}

// New fails if the bootstrap key is invalid or a metric cannot be registered.
func New(c Config) (*Edge, error) {
	e := &Edge{limits: c.Limits.OrDefault(), log: c.Logger, now: c.Now, newID: c.NewID, spans: c.Spans, leaving: make(chan struct{}),
		idle: cmp.Or(c.IdleTime, IdleTime)}
	e.uncharged.Most = maxUncharged
	e.connections = newConnections(cmp.Or(c.MaxConnections, maxConnections), c.AddressConnections, e.tenantOf)
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.now == nil {
		e.now = time.Now
	}
	if e.newID == nil {
		e.newID = func(time.Time) uuid.UUID { return uuid.Must(uuid.NewV7()) }
	}
	e.rates, e.ratePolicy = admission.NewRates(e.limits.EventsPerSecond, e.limits.EventsBurst), ratePolicy(e.limits)
	e.ingest, e.other, e.streams = e.limits.Ingest(), e.limits.Other(), e.limits.Open()
	e.bodies = &body.Reader{Limit: body.MaxSize, Timeout: readTime, Small: e.limits.BodyTime, Shutdown: e.leaving}
	var err error
	if e.keys, err = auth.New(c.Keys, c.BootstrapOperatorKey, e.now); err != nil {
		return nil, err
	}
	if e.metrics, err = newRequestMetrics(c.Registerer, e.inFlight()...); err != nil {
		return nil, fmt.Errorf("register the metrics of HTTP: %w", err)
	}
	return e, nil
}

// Keys finds the callers of requests.
func (e *Edge) Keys() *auth.Authenticator { return e.keys }

// RefuseBy sets a function that writes the problems of some requests in another form, and reports whether it did. It must be called before
// requests are served.
func (e *Edge) RefuseBy(write func(w http.ResponseWriter, r *http.Request, p *problem.Problem) bool) {
	e.refusals = write
}

// Shutdown is closed when the server shuts down: streams end then.
func (e *Edge) Shutdown() <-chan struct{} { return e.leaving }

// handled wraps every request: request ids, common headers, panics, metrics, the access log.
type handled struct {
	*Edge
	next http.Handler
}

// Handle returns the handler of all requests, which passes them to next.
func (e *Edge) Handle(next http.Handler) http.Handler { return &handled{e, next} }

func (e *handled) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	x := newExchange(r, e.newID(start))
	out := &answer{ResponseWriter: w, to: r, x: x, through: true}
	if e.spans != nil {
		if trace, ok := e.spans.Trace(r.Context()); ok {
			x.trace = trace
		}
	}
	header := w.Header()
	header["X-Request-Id"] = []string{x.ID}
	header["X-Content-Type-Options"] = noSniff
	header["Cache-Control"] = noStore
	x.to, x.answer = w, out
	r, end := e.await(x, w, r)
	r = r.WithContext(WithExchange(r.Context(), x))
	x.begin(r.Context(), start)
	defer x.release()
	defer end()
	defer e.finish(out, r, x, start)
	if refused := checkPath(r.URL); refused != nil {
		e.Refuse(out, r, refused)
		return
	}
	e.next.ServeHTTP(out, r)
	if !out.send() {
		e.Refuse(out, r, problem.OutOfMemoryForAnswer())
	}
}

// Header values that many answers share: net/http does not write to them.
var (
	noSniff = []string{"nosniff"}
	noStore = []string{"no-store"}
)

// finish recovers a panic, counts the request and logs it.
func (e *Edge) finish(out *answer, r *http.Request, x *Exchange, start time.Time) {
	if fault := recover(); fault != nil {
		if fault == http.ErrAbortHandler {
			panic(fault)
		}
		e.log.ErrorContext(r.Context(), "a handler panicked", "request", x.ID, "trace", x.TraceID(),
			"fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
		if out.drop() {
			e.Refuse(out, r, problem.New("internal", "A fault of the service; quote the request id to have it found"))
		}
	}
	took := time.Since(start)
	if e.spans != nil && x.route != nil {
		e.spans.Routed(r.Context(), r.Method, x.route.Path)
	}
	e.metrics.answered(x.route, r.Method, out.status, took)
	if x.route != nil && x.route.Objective != "" && !x.Uncounted && out.status != 0 {
		e.metrics.objective(x.route, out.status, took)
	}
	if !e.log.Enabled(r.Context(), slog.LevelDebug) {
		return
	}
	e.log.DebugContext(r.Context(), "answered", "request", x.ID, "trace", x.TraceID(), "method", r.Method,
		"route", routePath(x.route), "status", out.status, "took", took)
}

// checkPath refuses characters that no id or key can hold and that a database or a log
// may not accept. It also refuses empty segments, which would be empty ids.
func checkPath(u *url.URL) *problem.Problem {
	sent := u.RawPath // still escaped: an id may hold slashes
	if sent == "" {
		sent = u.Path
	}
	control := strings.ContainsFunc(u.Path, func(r rune) bool { return r < ' ' || r == 0x7F })
	switch {
	case control || !utf8.ValidString(u.Path):
		return problem.New("path_invalid", "The path holds control characters or is not valid UTF-8")
	case strings.Contains(sent, "//"):
		return noRoute()
	}
	return nil
}
