package edge

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/body"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/http/shape"
)

// guard runs before every operation: it refuses requests without an authorized key, and
// parameters or members that the operation does not define.
type guard struct {
	*Edge
	route  *auth.Route
	query  *shape.Query
	body   *shape.Body
	next   http.Handler
	inWork *admission.Counter // the counter of its kind of requests
	bound  int64              // its limit
}

// Guard returns the handler of an operation, behind its guard. body is nil if the operation
// has none or reads it itself.
func (e *Edge) Guard(route *auth.Route, query *shape.Query, body *shape.Body, next http.Handler) http.Handler {
	g := &guard{e, route, query, body, next, &e.others, e.limits.Others}
	if route.Ingest {
		g.inWork, g.bound = &e.ingests, e.limits.Requests
	}
	return g
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := ExchangeOf(r.Context())
	x.route = g.route
	var p *problem.Problem
	if limited(g.route) {
		p = g.within(w, r, x)
	} else {
		p = g.serveAdmitted(w, r, x)
	}
	if p != nil {
		g.Refuse(w, r, p) // it drains the rest of the body without holding a place in flight
	}
}

// within serves a request that counts against the limit of requests in flight.
func (g *guard) within(w http.ResponseWriter, r *http.Request, x *Exchange) *problem.Problem {
	if r.Context().Value(spareKey{}) != nil {
		w.Header().Set("Connection", "close")
		return problem.Overloaded(problem.BecauseConnections, "Too many connections are open; close those that are idle, and connect again later")
	}
	if !g.inWork.Enter(g.bound) {
		return problem.Overloaded(problem.BecauseRequests, "Too many requests are in work; send this one again")
	}
	defer g.inWork.Leave()
	defer x.charge.Close()
	ctx, cancel := context.WithTimeout(r.Context(), RequestTime)
	defer cancel()
	return g.serveAdmitted(w, r.WithContext(ctx), x)
}

// serveAdmitted admits a request and serves it. The caller must write the problem that it returns.
func (g *guard) serveAdmitted(w http.ResponseWriter, r *http.Request, x *Exchange) *problem.Problem {
	if p := g.admit(r, x, g.query, g.body); p != nil {
		return p
	}
	g.next.ServeHTTP(w, r)
	return x.Refused
}

// limited reports whether a route belongs to the API. Health routes are not limited: they
// answer also if the API is full.
func limited(route *auth.Route) bool { return route.Who != auth.Public }

// admit checks the key, then the query, then the body, so that an unauthenticated caller
// learns nothing about the rest.
func (e *Edge) admit(r *http.Request, x *Exchange, query *shape.Query, members *shape.Body) *problem.Problem {
	if limited(x.route) {
		if p := e.Authenticate(r, x); p != nil {
			return p
		}
		if p := e.open(x); p != nil {
			return p
		}
	}
	if p := query.Check(r.URL.RawQuery); p != nil {
		return p
	}
	if members == nil || members.Optional && r.ContentLength == 0 {
		return nil
	}
	raw, p := e.ReadBody(r, body.IsJSONMedia)
	if p != nil {
		return p
	}
	x.Body = raw
	r.Body = io.NopCloser(bytes.NewReader(raw))
	return members.Check(raw)
}

// Authenticate finds the caller and checks that it may call the request's route. Streams
// repeat it: a key may be revoked meanwhile.
func (e *Edge) Authenticate(r *http.Request, x *Exchange) *problem.Problem {
	caller, tenant, err := e.keys.Authenticate(r, x.route)
	if err != nil {
		return e.Problem(r.Context(), err)
	}
	caller.CorrelationID = x.trace
	x.Caller, x.Tenant = caller, tenant
	return nil
}

// open starts the charge of an authenticated request.
func (e *Edge) open(x *Exchange) *problem.Problem {
	var share *admission.Counter
	if x.Tenant != nil {
		share = e.rates.Memory(x.Caller.TenantID, e.now())
	}
	var ok bool
	if x.charge, ok = admission.OpenCharge(&e.memory, e.limits.Memory, share); !ok {
		return problem.OutOfMemory()
	}
	return nil
}

// ReadBody reads and decompresses the whole body of a request.
func (e *Edge) ReadBody(r *http.Request, takes func(media string) bool) ([]byte, *problem.Problem) {
	x := ExchangeOf(r.Context())
	return e.bodies.Read(r, x.to, &x.charge, takes)
}
