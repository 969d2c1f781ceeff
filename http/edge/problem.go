package edge

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/http/problem"
)

// Refuse counts and writes a problem. The caller must not have written any of the answer.
func (e *Edge) Refuse(w http.ResponseWriter, r *http.Request, p *problem.Problem) {
	x := ExchangeOf(r.Context())
	if !x.arrived {
		defer e.bodies.Drain(r, x.to, p)()
	}
	if x.to != nil && r.ProtoMajor > 1 { // a stream that is not read ends
		_ = http.NewResponseController(x.to).SetWriteDeadline(time.Now().Add(pieceTime))
	}
	e.Complete(r.Context(), r.URL, p)
	if e.refusals != nil && e.refusals(w, r, p) {
		return
	}
	body := p.Encode()
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", problem.MediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a disconnected client does not need it
}

// Complete counts a problem that will be written, and adds the trace id and the path of its
// request.
func (e *Edge) Complete(ctx context.Context, u *url.URL, p *problem.Problem) *problem.Problem {
	e.metrics.refuse(p)
	x := ExchangeOf(ctx)
	x.Uncounted = x.Uncounted || p.Reason() == problem.BecauseTenant
	return p.For(x.TraceID(), u)
}

// Problem converts an error to a problem and logs it unless only the caller is at fault.
func (e *Edge) Problem(ctx context.Context, err error) *problem.Problem {
	p, cause := problem.Of(err)
	if cause != nil && ctx.Err() != context.Canceled {
		x := ExchangeOf(ctx)
		e.log.ErrorContext(ctx, "a request failed", "request", x.ID, "trace", x.TraceID(),
			"route", routePath(x.route), "code", p.Code, "error", cause)
	}
	return p
}

// NotFound answers requests without a route.
func (e *Edge) NotFound(w http.ResponseWriter, r *http.Request) { e.Refuse(w, r, noRoute()) }

func noRoute() *problem.Problem {
	return problem.New("not_found", "No route has this path; paths are case-sensitive and have no slash at the end. /openapi.json "+
		"lists the routes")
}
