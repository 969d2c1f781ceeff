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
	route *auth.Route
	query *shape.Query
	body  *shape.Body
	next  http.Handler
}

// Guard returns the handler of an operation, behind its guard. body is nil if the operation
// has none or reads it itself.
func (e *Edge) Guard(route *auth.Route, query *shape.Query, body *shape.Body, next http.Handler) http.Handler {
	return &guard{e, route, query, body, next}
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
		x.answer.through = true
		if x.uncharged != nil && x.charge.Held() > 0 {
			g.uncharged.Join(x.uncharged)
		}
		x.release() // a refused request holds nothing while its body is drained and while it is written
		g.Refuse(w, r, p)
	}
}

// within serves a request that counts against the bounds of requests in flight. A request without a valid key does not.
func (g *guard) within(w http.ResponseWriter, r *http.Request, x *Exchange) *problem.Problem {
	if p := g.Authenticate(r, x); p != nil {
		return p
	}
	if r.Context().Value(spareKey{}) != nil && x.Tenant != nil {
		w.Header().Set("Connection", "close")
		return problem.Overloaded(problem.BecauseConnections,
			"Too many connections are open; close those that are idle, and connect again later")
	}
	if p := g.open(x); p != nil {
		return p
	}
	x.answer.through = false
	ctx, cancel := context.WithTimeout(r.Context(), RequestTime)
	defer cancel()
	return g.serveAdmitted(w, r.WithContext(ctx), x)
}

// serveAdmitted admits a request and serves it. The caller must write the problem that it returns.
func (g *guard) serveAdmitted(w http.ResponseWriter, r *http.Request, x *Exchange) *problem.Problem {
	if p := g.admit(r, x); p != nil {
		return p
	}
	g.next.ServeHTTP(w, r)
	return x.Refused
}

// limited reports whether a route belongs to the API. Health routes are not limited: they
// answer also if the API is full. A page of the console is not limited, but its requests to the API are.
func limited(route *auth.Route) bool { return route.Who != auth.Public && !route.Session }

// admit checks the query, then the body. The key is checked before, so that an unauthenticated caller cannot learn about the rest.
func (g *guard) admit(r *http.Request, x *Exchange) *problem.Problem {
	if p := g.query.Check(r.URL.RawQuery); p != nil {
		return p
	}
	if x.rows = rowCost * g.query.PageSize(r.URL.RawQuery); !x.charge.Acquire(x.rows) {
		return problem.OutOfMemory()
	}
	if p := g.readReason(r, x); p != nil {
		return p
	}
	if g.body == nil || g.body.Optional && r.ContentLength == 0 {
		return nil
	}
	raw, p := g.ReadBody(r, body.IsJSONMedia)
	if p != nil {
		return p
	}
	x.Body = raw
	r.Body = io.NopCloser(bytes.NewReader(raw))
	return g.body.Check(raw)
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

// open starts the charge of an authenticated request, keeps its connection and takes a slot.
func (e *Edge) open(x *Exchange) *problem.Problem {
	kind, holds := &e.other, (*admission.Holds)(nil)
	if x.Tenant != nil {
		x.tenant = e.tenantOf(x.Caller.TenantID)
		holds = &x.tenant.Other
	}
	x.Keep(x.Caller.TenantID)
	if x.route.Ingest {
		kind, holds = &e.ingest, &x.tenant.Ingest
	}
	var memory *admission.Counter
	if x.slot = (slot{in: &kind.Slots}); holds != nil {
		x.slot.own, memory = &holds.Slots, &holds.Memory
	}
	var ok bool
	if x.charge, ok = admission.OpenCharge(&kind.Memory, memory); !ok {
		return problem.OutOfMemory()
	}
	if x.uncharged != nil {
		e.uncharged.Leave(x.uncharged)
	}
	return x.slot.acquire()
}

// ReadBody reads and decompresses the whole body of a request. Meanwhile the request has no slot: a client that
// sends slowly keeps no slot from others.
func (e *Edge) ReadBody(r *http.Request, takes func(media string) bool) ([]byte, *problem.Problem) {
	x := ExchangeOf(r.Context())
	x.slot.release()
	e.awaited.Add()
	defer e.awaited.Leave()
	raw, p := e.bodies.Read(r, x.to, &x.charge, takes)
	if p != nil {
		return nil, p
	}
	x.arrived = true
	return raw, x.slot.acquire()
}

// readReason reads the reason of a change. The log of events holds it if the route is Reasoned, else the log of the service.
func (g *guard) readReason(r *http.Request, x *Exchange) (p *problem.Problem) {
	if r.Method == http.MethodGet || r.Header[HeaderReason] == nil {
		return nil
	}
	if x.reason, p = reasonOf(r.Header[HeaderReason]); p == nil && !g.route.Reasoned {
		g.log.InfoContext(r.Context(), "a request gave a reason", "request", x.ID, "trace", x.TraceID(), "route", routePath(x.route), "key",
			x.Caller.KeyID, "reason", x.reason)
	}
	return p
}
