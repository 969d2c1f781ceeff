package http

import (
	"context"
	"fmt"
	"log/slog"
	nethttp "net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"
)

// edge wraps every request: request ids, common headers, panics, metrics, the access log.
type edge struct {
	*service
	next nethttp.Handler
}

func (e *edge) ServeHTTP(w nethttp.ResponseWriter, r *nethttp.Request) {
	start := time.Now()
	x, out := newExchange(r, e.newID(start)), &recorder{ResponseWriter: w}
	header := w.Header()
	header["X-Request-Id"] = []string{x.id}
	header["X-Content-Type-Options"] = noSniff
	header["Cache-Control"] = noStore
	x.to = w
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	defer e.finish(out, r, x, start)
	if refused := checkPath(r.URL); refused != nil {
		e.refuse(out, r, refused)
		return
	}
	e.next.ServeHTTP(out, r)
}

// Header values that many answers share: net/http does not write to them.
var (
	noSniff  = []string{"nosniff"}
	noStore  = []string{"no-store"}
	jsonType = []string{mediaJSON}
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
