package http

import (
	"bytes"
	"context"
	"io"
	nethttp "net/http"
	"strings"
)

// guard stands before every operation: it lets nobody in without a key that may,
// and nothing that the operation does not know.
func (t *site) guard(row *Route, query *queryRules, body *bodyRules, next nethttp.Handler) nethttp.Handler {
	inWork, bound := &t.others, t.limits.Others
	if row.isIngest() {
		inWork, bound = &t.ingests, t.limits.Requests
	}
	return nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		x := exchangeOf(r.Context())
		x.route = row
		if limited(row) {
			if r.Context().Value(spareKey{}) != nil {
				w.Header().Set("Connection", "close")
				t.refuse(w, r, overloaded(becauseConnections, "Too many connections are open; close those that are idle, and connect again later"))
				return
			}
			if !inWork.enter(bound) {
				t.refuse(w, r, overloaded(becauseRequests, "Too many requests are in work; send this one again"))
				return
			}
			defer inWork.leave()
			defer x.charge.close()
			ctx, cancel := context.WithTimeout(r.Context(), t.limits.Time)
			defer cancel()
			r = r.WithContext(ctx)
		}
		if p := t.admit(r, x, row, query, body); p != nil {
			t.refuse(w, r, p)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// limited tells the API from what is asked about the health of the service, which
// is answered also when the API is full.
func limited(row *Route) bool { return strings.HasPrefix(row.Path, prefix) }

// admit checks in the order that tells least to those who may know least: the
// key, then the query, then the body.
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
