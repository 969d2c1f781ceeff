package http_test

import (
	"context"
	"fmt"
	"io"
	nethttp "net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
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

// TestASlowSmallBodyHoldsNoSlotAndTimesOut lets one body not arrive while the instance has
// one slot for tenants. Only the deadline of small bodies ends the request.
func TestASlowSmallBodyHoldsNoSlotAndTimesOut(t *testing.T) {
	w, a := newServiceWithAccount(t, func(s *http.Server) { s.Limits.Others, s.Limits.BodyTime = 2, time.Hour })
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
	for _, path := range []string{"/entitlements/check", "/usage/events", "/entitlements/api_calls/consume"} {
		late := w.stall(path, a.key, 10, "{")
		w.must(late.SetDeadline(time.Now().Add(5 * time.Minute)))
		got, err := io.ReadAll(late) // the connection ends: the rest of the body may still come
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 408") || !strings.Contains(string(got), `"code":"request_timeout"`) {
			t.Errorf("%s: %v %s", path, err, got)
		}
	}
	w.awaitMetric("meterplex_http_requests_awaited 0")
	w.awaitMetric(`meterplex_http_request_bytes{kind="other"} 0`)
}

// slowKeys is a keyring whose answers about unknown keys take until the channel is closed.
type slowKeys struct {
	catalogue.Keyring
	waiting atomic.Int64
	end     chan struct{}
}

func (k *slowKeys) Find(ctx context.Context, hash [32]byte) (*domain.APIKey, *domain.Tenant, commands.CatalogueAt, error) {
	key, tenant, at, err := k.Keyring.Find(ctx, hash)
	if key == nil {
		k.waiting.Add(1)
		<-k.end
	}
	return key, tenant, at, err
}

// TestAnUnknownKeyTakesNoSlot lets the lookups of many unknown keys wait, on an instance with one slot for tenants.
func TestAnUnknownKeyTakesNoSlot(t *testing.T) {
	keys := &slowKeys{end: make(chan struct{})}
	w, a := newServiceWithAccount(t, func(s *http.Server) {
		keys.Keyring, s.Keys = s.Keys, keys
		s.Limits.Requests, s.Limits.Others = 2, 2
	})
	w.fold()
	var all sync.WaitGroup
	const unknown = 8
	for i := range unknown {
		all.Go(func() {
			key := fmt.Sprintf("mp_live_%043d", i)
			sent := []call{checkFeatures(key), {"POST", "/api/v1/usage/events", key, nil, batch(event("1", nil))}}[i%2]
			w.refused(w.do(sent), 401, "unauthenticated")
		})
	}
	w.until("the lookups wait", func() bool { return keys.waiting.Load() == unknown })
	w.othersAnswered(a)
	close(keys.end)
	all.Wait()
}

// TestP9_ATenantsStreamsLeaveOthersTheirs opens every stream that one tenant may have, then every
// one that tenants may have.
func TestP9_ATenantsStreamsLeaveOthersTheirs(t *testing.T) {
	w, a := newServiceWithAccount(t, func(s *http.Server) { s.Limits.Streams = 16 })
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
	for range 4 { // of 14 - 4
		open(b.key)
	}
	w.overShare(w.do(call{method: "GET", path: stream, key: b.key}))
	for range 3 { // of 14 - 8
		open(c.key)
	}
	w.overShare(w.do(call{method: "GET", path: stream, key: c.key}))
	for range 16 - 11 {
		open(auditor)
	}
	w.refused(w.do(call{method: "GET", path: export, key: auditor}), 503, "overloaded")
	w.refused(w.do(call{method: "GET", path: stream, key: w.newAccount("D").key}), 503, "overloaded")
	w.awaitMetric("meterplex_http_streams 16")
	end()
	w.awaitMetric("meterplex_http_streams 0")
	w.awaitMetric(`meterplex_http_requests_in_flight{kind="other"} 0`)
	w.awaitMetric(`meterplex_http_request_bytes{kind="other"} 0`)
	ctx, end = context.WithCancel(t.Context())
	defer end()
	for range 4 {
		open(a.key)
	}
}
