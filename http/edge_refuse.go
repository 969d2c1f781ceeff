package http

import (
	"context"
	nethttp "net/http"
	"net/url"
	"strconv"
)

// refuse counts and writes a problem. The caller must not have written any of the answer.
func (e *edge) refuse(w nethttp.ResponseWriter, r *nethttp.Request, p *Problem) {
	e.bodies.drain(r, exchangeOf(r.Context()).to, p)
	body := e.complete(r.Context(), r.URL, p).encode()
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", problemType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a disconnected client does not need it
}

// complete counts a problem that will be written, and adds the trace id and the path of its
// request.
func (e *edge) complete(ctx context.Context, u *url.URL, p *Problem) *Problem {
	e.metrics.refuse(p)
	return p.of(exchangeOf(ctx).traceID(), u)
}

// problem converts an error to a problem and logs it unless only the caller is at fault.
func (e *edge) problem(ctx context.Context, err error) *Problem {
	p, cause := problemOf(err)
	if cause != nil && ctx.Err() != context.Canceled {
		x := exchangeOf(ctx)
		e.log.ErrorContext(ctx, "a request failed", "request", x.id, "trace", x.traceID(),
			"route", routePath(x.route), "code", p.Code, "error", cause)
	}
	return p
}

// notFound answers requests without a route.
func (e *edge) notFound(w nethttp.ResponseWriter, r *nethttp.Request) { e.refuse(w, r, noRoute()) }

func noRoute() *Problem {
	return newProblem("not_found", "No route has this path; paths are case-sensitive and have no slash at the end. /openapi.json lists all that there are")
}
