package http

import (
	"bytes"
	"context"
	"io"
	nethttp "net/http"
)

// guard runs before every operation: it refuses requests without an authorized key, and
// parameters or members that the operation does not define.
type guard struct {
	*edge
	route  *Route
	query  *queryRules
	body   *bodyRules
	next   nethttp.Handler
	inWork *counter // the counter of its kind of requests
	bound  int64    // its limit
}

// guard returns the handler of an operation, behind its guard. body is nil if the operation
// has none or reads it itself.
func (e *edge) guard(route *Route, query *queryRules, body *bodyRules, next nethttp.Handler) nethttp.Handler {
	g := &guard{e, route, query, body, next, &e.others, e.limits.Others}
	if route.Ingest {
		g.inWork, g.bound = &e.ingests, e.limits.Requests
	}
	return g
}

func (g *guard) ServeHTTP(w nethttp.ResponseWriter, r *nethttp.Request) {
	x := exchangeOf(r.Context())
	x.route = g.route
	var p *Problem
	if limited(g.route) {
		p = g.within(w, r, x)
	} else {
		p = g.serveAdmitted(w, r, x)
	}
	if p != nil {
		g.refuse(w, r, p) // it drains the rest of the body without holding a place in flight
	}
}

// within serves a request that counts against the limit of requests in flight.
func (g *guard) within(w nethttp.ResponseWriter, r *nethttp.Request, x *exchange) *Problem {
	if r.Context().Value(spareKey{}) != nil {
		w.Header().Set("Connection", "close")
		return overloaded(becauseConnections, "Too many connections are open; close those that are idle, and connect again later")
	}
	if !g.inWork.enter(g.bound) {
		return overloaded(becauseRequests, "Too many requests are in work; send this one again")
	}
	defer g.inWork.leave()
	defer x.charge.close()
	ctx, cancel := context.WithTimeout(r.Context(), g.limits.Time)
	defer cancel()
	return g.serveAdmitted(w, r.WithContext(ctx), x)
}

// serveAdmitted admits a request and serves it. The caller must write the problem that it returns.
func (g *guard) serveAdmitted(w nethttp.ResponseWriter, r *nethttp.Request, x *exchange) *Problem {
	if p := g.admit(r, x, g.query, g.body); p != nil {
		return p
	}
	g.next.ServeHTTP(w, r)
	return x.refused
}

// limited reports whether a route belongs to the API. Health routes are not limited: they
// answer also if the API is full.
func limited(route *Route) bool { return route.Who != Public }

// admit checks the key, then the query, then the body, so that an unauthenticated caller
// learns nothing about the rest.
func (e *edge) admit(r *nethttp.Request, x *exchange, query *queryRules, body *bodyRules) *Problem {
	if limited(x.route) {
		if p := e.authenticate(r, x); p != nil {
			return p
		}
		if p := e.open(x); p != nil {
			return p
		}
	}
	if p := query.check(r.URL.RawQuery); p != nil {
		return p
	}
	if body == nil || body.optional && r.ContentLength == 0 {
		return nil
	}
	raw, p := e.readBody(r, isJSONMedia)
	if p != nil {
		return p
	}
	x.body = raw
	r.Body = io.NopCloser(bytes.NewReader(raw))
	return body.check(raw)
}

// authenticate finds the caller and checks that it may call the request's route. Streams
// repeat it: a key may be revoked meanwhile.
func (e *edge) authenticate(r *nethttp.Request, x *exchange) *Problem {
	caller, tenant, err := e.keys.authenticate(r, x.route)
	if err != nil {
		return e.problem(r.Context(), err)
	}
	caller.CorrelationID = x.trace
	x.caller, x.tenant = caller, tenant
	return nil
}

// open starts the charge of an authenticated request.
func (e *edge) open(x *exchange) *Problem {
	var share *counter
	if x.tenant != nil {
		share = &e.rates.of(x.caller.TenantID, e.now()).memory
	}
	var ok bool
	if x.charge, ok = openCharge(&e.memory, e.limits.Memory, share); !ok {
		return tooLargeTogether()
	}
	return nil
}

// readBody reads and decompresses the whole body of a request.
func (e *edge) readBody(r *nethttp.Request, takes func(media string) bool) ([]byte, *Problem) {
	x := exchangeOf(r.Context())
	return e.bodies.read(r, x.to, &x.charge, takes)
}
