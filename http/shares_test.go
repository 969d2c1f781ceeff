package http_test

import (
	"context"
	"io"
	"net"
	nethttp "net/http"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/http"
)

// checkFeatures is a request of a tenant that has a body and is not ingest.
func checkFeatures(key string) call {
	return call{"POST", "/api/v1/entitlements/check", key, nil, `{"features":[{"feature":"api_calls"}]}`}
}

// othersAnswered sends a tenant's and an operator's requests, which must be answered.
func (w *testService) othersAnswered(b *account) {
	w.Helper()
	w.want(200, checkFeatures(b.key))
	w.want(200, call{method: "GET", path: "/api/v1/usage/conflicts", key: b.key})
	w.want(200, call{"PUT", "/api/v1/features/storage", bootstrap, nil, `{"name":"Storage","type":"METERED"}`})
	w.want(200, call{method: "GET", path: "/api/v1/tenants", key: bootstrap})
	w.ingest(b, batch(event(newID().String(), nil)))
}

// overShare checks the answer to a tenant that has its share of requests or streams already.
func (w *testService) overShare(a answer) {
	w.Helper()
	w.refused(a, 429, "rate_limited")
	if a.header.Get("Retry-After") != "1" || w.refusedCount("tenant") == 0 {
		w.Errorf("%v; %d refusals are counted", a.header, w.refusedCount("tenant"))
	}
}

// TestP9_ATenantsIdleBodiesLeaveOthersTheirPlaces opens as many requests without their body as
// the instance has places.
func TestP9_ATenantsIdleBodiesLeaveOthersTheirPlaces(t *testing.T) {
	w, a := newServiceWithAccount(t, func(s *http.Server) { s.Limits.BodyTime = time.Hour })
	b := w.newAccount("B")
	w.fold()
	idle := make([]net.Conn, 1024)
	for i := range idle {
		idle[i] = w.stall("/entitlements/check", a.key, 10, "{")
	}
	const share = 256
	for end := time.Now().Add(5 * time.Minute); w.metric("meterplex_http_requests_awaited") < share; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the requests do not arrive")
		}
	}
	w.overShare(w.do(checkFeatures(a.key)))
	w.othersAnswered(b)
	w.awaitMetric(`meterplex_http_requests_in_flight{kind="other"} 0`)
	if n := w.metric("meterplex_http_requests_awaited"); n != share {
		t.Errorf("%d requests of the tenant wait for their body, want %d", n, share)
	}
	w.overShare(w.do(call{method: "GET", path: "/api/v1/usage/conflicts", key: a.key}))
	w.ingest(a, batch(event("ingest has places of its own", nil)))
	for _, conn := range idle {
		conn.Close()
	}
	w.awaitMetric("meterplex_http_requests_awaited 0")
	w.awaitMetric("meterplex_http_request_bytes 0")
	for got := w.do(checkFeatures(a.key)); got.status != 200; got = w.do(checkFeatures(a.key)) { // the last of them may be ending
		w.overShare(got)
	}
}

// TestASlowSmallBodyHoldsNoPlaceAndTimesOut lets one body not arrive while the instance has a
// single place. Only the deadline of small bodies ends the request.
func TestASlowSmallBodyHoldsNoPlaceAndTimesOut(t *testing.T) {
	w, a := newServiceWithAccount(t, func(s *http.Server) { s.Limits.Others, s.Limits.BodyTime = 1, time.Hour })
	b := w.newAccount("B")
	w.fold()
	conn := w.stall("/entitlements/check", a.key, 10, "{")
	w.awaitMetric("meterplex_http_requests_awaited 1")
	w.othersAnswered(b)
	w.want(200, checkFeatures(a.key))
	w.awaitMetric("meterplex_http_requests_awaited 1")
	conn.Close()
	w.awaitMetric("meterplex_http_requests_awaited 0")

	s := w.server()
	s.Limits.BodyTime = 100 * time.Millisecond
	w.serveWith(s, func(server *nethttp.Server) { server.ReadTimeout, server.IdleTimeout = 0, 0 })
	late := w.stall("/entitlements/check", a.key, 10, "{")
	w.must(late.SetDeadline(time.Now().Add(5 * time.Minute)))
	got, err := io.ReadAll(late) // the connection ends: the rest of the body may still come
	if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 408") || !strings.Contains(string(got), `"code":"request_timeout"`) {
		t.Errorf("%v %s", err, got)
	}
	w.awaitMetric("meterplex_http_requests_awaited 0")
	w.awaitMetric("meterplex_http_request_bytes 0")
}

// TestP9_ATenantsIdleIngestLeavesOthersTheirPlaces: the body of ingest is read within its place.
func TestP9_ATenantsIdleIngestLeavesOthersTheirPlaces(t *testing.T) {
	w, a := newServiceWithAccount(t, func(s *http.Server) { s.Limits.Requests, s.Limits.TenantRequests = 4, 2 })
	b := w.newAccount("B")
	held := []net.Conn{w.stallRequest(a.key, 10, "{")}
	one := w.awaitBytes(1) // a request reads its body once it counts against its tenant's share
	held = append(held, w.stallRequest(a.key, 10, "{"))
	w.awaitBytes(2 * one)
	w.awaitMetric(`meterplex_http_requests_in_flight{kind="ingest"} 2`)
	before, sent := w.stored(), call{"POST", "/api/v1/usage/events", a.key, nil, batch(event("1", nil))}
	refused := w.do(sent)
	w.overShare(refused)
	w.same("stored", w.stored(), before)
	w.ingest(b, batch(event("1", nil)))
	w.want(200, call{method: "GET", path: "/api/v1/usage/conflicts", key: a.key})
	for _, conn := range held {
		conn.Close()
	}
	for refused.status != 202 {
		refused = w.do(sent)
	}
	w.awaitMetric(`meterplex_http_requests_in_flight{kind="ingest"} 0`)
}

// TestP9_ATenantsStreamsLeaveOthersTheirs opens every stream that one tenant may have, then every
// one that tenants may have.
func TestP9_ATenantsStreamsLeaveOthersTheirs(t *testing.T) {
	w, a := newServiceWithAccount(t, func(s *http.Server) { s.Limits.Streams, s.Limits.OperatorStreams = 8, 2 })
	b, c := w.newAccount("B"), w.newAccount("C")
	auditor, _ := w.key("", nil, "audit")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	open := func(key string) { w.listen(ctx, key, "", "") }
	for range 4 {
		open(a.key)
	}
	const stream, export = "/api/v1/events/stream?follow=false", "/api/v1/events/export"
	for _, path := range []string{stream, export} {
		w.overShare(w.do(call{method: "GET", path: path, key: a.key}))
		for _, key := range []string{b.key, auditor} {
			w.same(path, w.do(call{method: "GET", path: path, key: key}).status, 200)
		}
	}
	w.awaitMetric("meterplex_http_streams 4")
	open(b.key)
	open(b.key)
	w.refused(w.do(call{method: "GET", path: stream, key: c.key}), 503, "overloaded")
	open(auditor)
	open(auditor)
	w.refused(w.do(call{method: "GET", path: export, key: auditor}), 503, "overloaded")
	w.awaitMetric("meterplex_http_streams 8")
	end()
	w.awaitMetric("meterplex_http_streams 0")
	w.awaitMetric(`meterplex_http_requests_in_flight{kind="other"} 0`)
	w.awaitMetric("meterplex_http_request_bytes 0")
	ctx, end = context.WithCancel(t.Context())
	defer end()
	for range 4 {
		open(a.key)
	}
}
