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
	at := place{in: g.inWork, bound: g.bound}
	var p *problem.Problem
	if limited(g.route) {
		p = g.within(w, r, x, &at)
	} else {
		p = g.serveAdmitted(w, r, x, &at)
	}
	if p != nil {
		g.Refuse(w, r, p) // it drains the rest of the body without holding a place in flight
	}
}

// within serves a request that counts against the limits of requests in flight.
func (g *guard) within(w http.ResponseWriter, r *http.Request, x *Exchange, at *place) *problem.Problem {
	if r.Context().Value(spareKey{}) != nil {
		w.Header().Set("Connection", "close")
		return problem.Overloaded(problem.BecauseConnections, "Too many connections are open; close those that are idle, and connect again later")
	}
	if p := at.acquire(); p != nil {
		return p
	}
	defer at.release()
	defer x.release()
	ctx, cancel := context.WithTimeout(r.Context(), RequestTime)
	defer cancel()
	return g.serveAdmitted(w, r.WithContext(ctx), x, at)
}

// serveAdmitted admits a request and serves it. The caller must write the problem that it returns.
func (g *guard) serveAdmitted(w http.ResponseWriter, r *http.Request, x *Exchange, at *place) *problem.Problem {
	if p := g.admit(r, x, at); p != nil {
		return p
	}
	g.next.ServeHTTP(w, r)
	return x.Refused
}

// limited reports whether a route belongs to the API. Health routes are not limited: they
// answer also if the API is full. A page of the console is not limited, but its requests to the API are.
func limited(route *auth.Route) bool { return route.Who != auth.Public && !route.Session }

// admit checks the key, then the query, then the body, so that an unauthenticated caller
// cannot learn about the rest.
func (g *guard) admit(r *http.Request, x *Exchange, at *place) *problem.Problem {
	if limited(x.route) {
		if p := g.Authenticate(r, x); p != nil {
			return p
		}
		if p := g.open(x); p != nil {
			return p
		}
		if p := g.acquireShare(x); p != nil {
			return p
		}
	}
	if p := g.query.Check(r.URL.RawQuery); p != nil {
		return p
	}
	if p := g.readReason(r, x); p != nil {
		return p
	}
	if g.body == nil || g.body.Optional && r.ContentLength == 0 {
		return nil
	}
	raw, p := g.awaitBody(r, x, at)
	if p != nil {
		return p
	}
	x.Body = raw
	r.Body = io.NopCloser(bytes.NewReader(raw))
	return g.body.Check(raw)
}

// awaitBody reads a body while the request has no place in flight: a client that sends slowly
// keeps no place from others. The request still counts against its tenant's share.
func (g *guard) awaitBody(r *http.Request, x *Exchange, at *place) ([]byte, *problem.Problem) {
	at.release()
	g.awaited.Add()
	defer g.awaited.Leave()
	raw, p := g.impatient.Read(r, x.to, &x.charge, body.IsJSONMedia)
	if p != nil {
		return nil, p
	}
	x.arrived = true
	return raw, at.acquire()
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
	x.keep()
	return nil
}

// open starts the charge of an authenticated request.
func (e *Edge) open(x *Exchange) *problem.Problem {
	var share *admission.Counter
	if x.Tenant != nil {
		x.holds = e.rates.Tenant(x.Caller.TenantID, e.now())
		share = &x.holds.Memory
	}
	var ok bool
	if x.charge, ok = admission.OpenCharge(&e.memory, e.limits.Memory, share); !ok {
		return problem.OutOfMemory()
	}
	return nil
}

// acquireShare counts a request against its tenant's share. Operators have no share.
func (e *Edge) acquireShare(x *Exchange) *problem.Problem {
	if x.holds == nil {
		return nil
	}
	share, bound := &x.holds.Others, e.limits.TenantOthers
	if x.route.Ingest {
		share, bound = &x.holds.Ingests, e.limits.TenantRequests
	}
	if !share.Enter(bound) {
		return problem.OverShare("The tenant has as many requests in work as one tenant may have; send this one again when others are answered")
	}
	x.share = share
	return nil
}

// ReadBody reads and decompresses the whole body of a request.
func (e *Edge) ReadBody(r *http.Request, takes func(media string) bool) ([]byte, *problem.Problem) {
	x := ExchangeOf(r.Context())
	raw, p := e.bodies.Read(r, x.to, &x.charge, takes)
	x.arrived = p == nil
	return raw, p
}

// readReason reads the reason of a change. The log of events holds it if the route is Reasoned, else the log of the service.
func (g *guard) readReason(r *http.Request, x *Exchange) (p *problem.Problem) {
	if r.Method == http.MethodGet || r.Header[HeaderReason] == nil {
		return nil
	}
	if x.reason, p = reasonOf(r.Header[HeaderReason]); p == nil && !g.route.Reasoned {
		g.log.InfoContext(r.Context(), "a request gave a reason", "request", x.ID, "trace", x.TraceID(), "route", routePath(x.route), "key", x.Caller.KeyID, "reason", x.reason)
	}
	return p
}
