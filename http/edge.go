package http

import (
	"fmt"
	"log/slog"
	nethttp "net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/commands"
)

// edge admits requests: what happens before a handler, and the answers of refused requests.
type edge struct {
	limits      Limits
	log         *slog.Logger
	now         func() time.Time
	newID       func(now time.Time) uuid.UUID
	keys        *authenticator
	bodies      *reader
	metrics     *requestMetrics
	rates       *rates
	ratePolicy  []string // the header
	ingests     counter  // ingest requests in flight
	others      counter
	memory      counter // bytes held by requests in flight
	connections counter
	leaving     chan struct{} // closed when the server shuts down, to end streams
	left        sync.Once
}

// edgeConfig holds the dependencies of an edge. Only keys is required, if a route takes keys.
type edgeConfig struct {
	keys                 commands.Keyring
	bootstrapOperatorKey string
	limits               Limits
	logger               *slog.Logger
	now                  func() time.Time
	newID                func(now time.Time) uuid.UUID
	registerer           prometheus.Registerer
}

// newEdge fails if the bootstrap key is invalid or a metric cannot be registered.
func newEdge(c edgeConfig) (*edge, error) {
	e := &edge{limits: c.limits.orDefault(), log: c.logger, now: c.now, newID: c.newID, leaving: make(chan struct{})}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.now == nil {
		e.now = time.Now
	}
	if e.newID == nil {
		e.newID = func(time.Time) uuid.UUID { return uuid.Must(uuid.NewV7()) }
	}
	e.rates, e.ratePolicy = newRates(e.limits.EventsPerSecond, e.limits.EventsBurst), ratePolicy(e.limits)
	e.bodies = newReader(e.limits.Body, e.leaving)
	var err error
	if e.keys, err = newAuthenticator(c.keys, c.bootstrapOperatorKey, e.now); err != nil {
		return nil, err
	}
	if e.metrics, err = newRequestMetrics(c.registerer, e.inFlight()...); err != nil {
		return nil, fmt.Errorf("register the metrics of HTTP: %w", err)
	}
	return e, nil
}

// shutdown is closed when the server shuts down: streams end then.
func (e *edge) shutdown() <-chan struct{} { return e.leaving }

// handled wraps every request: request ids, common headers, panics, metrics, the access log.
type handled struct {
	*edge
	next nethttp.Handler
}

// handle returns the handler of all requests, which passes them to next.
func (e *edge) handle(next nethttp.Handler) nethttp.Handler { return &handled{e, next} }

func (e *handled) ServeHTTP(w nethttp.ResponseWriter, r *nethttp.Request) {
	start := time.Now()
	x, out := newExchange(r, e.newID(start)), &recorder{ResponseWriter: w}
	header := w.Header()
	header["X-Request-Id"] = []string{x.id}
	header["X-Content-Type-Options"] = noSniff
	header["Cache-Control"] = noStore
	x.to = w
	r = r.WithContext(withExchange(r.Context(), x))
	defer e.finish(out, r, x, start)
	if refused := checkPath(r.URL); refused != nil {
		e.refuse(out, r, refused)
		return
	}
	e.next.ServeHTTP(out, r)
}

// Header values that many answers share: net/http does not write to them.
var (
	noSniff = []string{"nosniff"}
	noStore = []string{"no-store"}
)

// finish recovers a panic, counts the request and logs it.
func (e *edge) finish(out *recorder, r *nethttp.Request, x *exchange, start time.Time) {
	if fault := recover(); fault != nil {
		if fault == nethttp.ErrAbortHandler {
			panic(fault)
		}
		e.log.ErrorContext(r.Context(), "a handler panicked", "request", x.id, "trace", x.traceID(),
			"fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
		if out.status == 0 {
			e.refuse(out, r, newProblem("internal", "A fault of the service; quote the request id to have it found"))
		}
	}
	took := time.Since(start)
	e.metrics.answered(x.route, r.Method, out.status, took)
	if !e.log.Enabled(r.Context(), slog.LevelDebug) {
		return
	}
	e.log.DebugContext(r.Context(), "answered", "request", x.id, "trace", x.traceID(), "method", r.Method,
		"route", routePath(x.route), "status", out.status, "took", took)
}

// checkPath refuses characters that no id or key can hold and that a database or a log
// may not accept. It also refuses empty segments, which would be empty ids.
func checkPath(u *url.URL) *Problem {
	sent := u.RawPath // still escaped: an id may hold slashes
	if sent == "" {
		sent = u.Path
	}
	control := strings.ContainsFunc(u.Path, func(r rune) bool { return r < ' ' || r == 0x7F })
	switch {
	case control || !utf8.ValidString(u.Path):
		return newProblem("path_invalid", "The path holds control characters or is not valid UTF-8")
	case strings.Contains(sent, "//"):
		return noRoute()
	}
	return nil
}

// recorder records the status of an answer.
type recorder struct {
	nethttp.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = nethttp.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find the connection.
func (r *recorder) Unwrap() nethttp.ResponseWriter { return r.ResponseWriter }
