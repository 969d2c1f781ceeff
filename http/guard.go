package http

import (
	"bytes"
	"context"
	"io"
	nethttp "net/http"
	"strings"
)

// guard runs before every operation: it refuses requests without an authorized key, and
// parameters or members that the operation does not define.
type guard struct {
	*site
	row    *Route
	query  *queryRules
	body   *bodyRules
	next   nethttp.Handler
	inWork *counter // the counter of its kind of requests
	bound  int64    // its limit
}

func (t *site) guard(row *Route, query *queryRules, body *bodyRules, next nethttp.Handler) nethttp.Handler {
	g := &guard{t, row, query, body, next, &t.others, t.limits.Others}
	if row.Ingest {
		g.inWork, g.bound = &t.ingests, t.limits.Requests
	}
	return g
}

func (g *guard) ServeHTTP(w nethttp.ResponseWriter, r *nethttp.Request) {
	x := exchangeOf(r.Context())
	x.route = g.row
	var p *Problem
	if limited(g.row) {
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
	if p := g.admit(r, x, g.row, g.query, g.body); p != nil {
		return p
	}
	g.next.ServeHTTP(w, r)
	return x.refused
}

// limited reports whether a route belongs to the API. Health routes are not limited: they
// answer also if the API is full.
func limited(row *Route) bool { return strings.HasPrefix(row.Path, prefix) }

// admit checks the key, then the query, then the body, so that an unauthenticated caller
// learns nothing about the rest.
func (t *site) admit(r *nethttp.Request, x *exchange, row *Route, query *queryRules, body *bodyRules) *Problem {
	if row.Who != Public {
		if p := t.authenticate(r, x, row); p != nil {
			return p
		}
	}
	if limited(row) {
		if p := t.open(x); p != nil {
			return p
		}
	}
	if p := query.check(r.URL.RawQuery); p != nil {
		return p
	}
	if body == nil || body.optional && r.ContentLength == 0 {
		return nil
	}
	raw, p := t.readBody(r, isJSONMedia)
	if p != nil {
		return p
	}
	x.body = raw
	r.Body = io.NopCloser(bytes.NewReader(raw))
	return body.check(raw)
}
