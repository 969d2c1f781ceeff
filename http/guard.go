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
	limited := strings.HasPrefix(row.Path, prefix)
	return nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		x := exchangeOf(r.Context())
		x.route = row
		if limited {
			if !t.inWork.enter(t.limits.Requests) {
				t.refuse(w, r, newProblem("overloaded", "Too many requests are in work; send this one again"))
				return
			}
			defer t.inWork.leave()
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

// admit checks in the order that tells least to those who may know least: the
// key, then the query, then the body.
func (t *site) admit(r *nethttp.Request, x *exchange, row *Route, query *queryRules, body *bodyRules) *Problem {
	if row.Who != Public {
		if p := t.authenticate(r, x, row); p != nil {
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
