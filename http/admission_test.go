package http_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
)

// stallRequest starts an ingest request whose body does not arrive: it stays in flight until the connection is closed.
func (w *testService) stallRequest(key string, length int, body string) net.Conn {
	w.Helper()
	return w.stall("/usage/events", key, length, body)
}

func (w *testService) stall(path, key string, length int, body string) net.Conn {
	w.Helper()
	conn, err := net.Dial("tcp", w.addr)
	w.must(err)
	w.Cleanup(func() { conn.Close() })
	_, err = fmt.Fprintf(conn, "POST /api/v1%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer "+
		"%s\r\nContent-Length: %d\r\n\r\n%s",
		path, key, length, body)
	w.must(err)
	return conn
}

// awaitMetric waits until the metrics contain a line.
func (w *testService) awaitMetric(line string) {
	w.Helper()
	for end := time.Now().Add(5 * time.Minute); !strings.Contains(string(w.do(call{method: "GET", path: "/metrics"}).body),
		"\n"+line+"\n"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatal("the metrics never told " + line)
		}
	}
}

// metric returns the value of a series of whole numbers.
func (w *testService) metric(series string) (n int) {
	w.Helper()
	_, rest, found := strings.Cut(string(w.do(call{method: "GET", path: "/metrics"}).body), "\n"+series+" ")
	if !found {
		w.Fatalf("no series %s", series)
	}
	_, err := fmt.Sscan(rest, &n)
	w.must(err)
	return n
}

// refusedCount returns the number of requests refused for a reason, from the metrics.
func (w *testService) refusedCount(reason string) (n int) {
	w.Helper()
	return w.metric(`meterplex_http_refused_total{reason="` + reason + `"}`)
}

func TestExcessRequestsAreRefusedExceptHealth(t *testing.T) {
	w, a := newServiceWithAccount(t, func(s *http.Server) {
		s.Limits.IngestMemory = 5 * hostileCost // two requests of one tenant
	})
	before, sent := w.stored(), call{"POST", "/api/v1/usage/events", a.key, nil, batch(event("1", nil))}
	held := []net.Conn{w.stallRequest(a.key, 10, "{"), w.stallRequest(a.key, 10, "{")}
	w.awaitMetric("meterplex_http_requests_awaited 2")
	refused := w.do(sent)
	w.refused(refused, 503, "overloaded")
	if refused.header.Get("Retry-After") != "1" || w.stored() != before || w.refusedCount("memory") == 0 {
		t.Errorf("%v; %d events are stored instead of %d", refused.header, w.stored(), before)
	}
	w.want(200, call{method: "GET", path: "/livez"})
	w.want(200, call{method: "GET", path: "/api/v1/usage/conflicts", key: a.key}) // other requests have a limit of their own
	for _, conn := range held {
		conn.Close()
	}
	for refused.status != 202 {
		refused = w.do(sent)
	}
}

func TestConnectionsAreBoundedExceptForHealth(t *testing.T) {
	w := newTestService(t, func(s *http.Server) { s.MaxConnections = 3 })
	w.catalogue() // uses one connection
	a := w.newAccount("A")
	w.client.CloseIdleConnections()
	var held []net.Conn
	refused := answer{}
	for n := 0; refused.status != 503 && n < 1000; n++ {
		// until three of operators are in work: before, a new connection closes one of them
		held = append(held, w.stall("/tenants", bootstrap, 10, "{"))
		w.client.CloseIdleConnections()
		refused = w.do(call{method: "GET", path: "/api/v1/usage/conflicts", key: a.key})
	}
	w.refused(refused, 503, "overloaded")
	w.want(200, call{method: "GET", path: "/livez"})
	if w.refusedCount("connections") == 0 {
		t.Error("it was not counted")
	}
	for _, conn := range held {
		conn.Close()
	}
	for refused.status != 200 {
		w.client.CloseIdleConnections()
		refused = w.do(call{method: "GET", path: "/api/v1/usage/conflicts", key: a.key})
	}
}

func TestTheMemoryOfRequestsIsBoundedAndShared(t *testing.T) {
	const memory = 1280 << 10
	w, a := newServiceWithAccount(t, func(s *http.Server) { s.Limits.IngestMemory = memory })
	b := w.newAccount("B")
	large := func(n int) []any { // about 200 KB
		list := make([]any, 200)
		for i := range list {
			list[i] = event(fmt.Sprint(n, "/", i), map[string]any{"metadata": map[string]any{"k": strings.Repeat("x", 900)}})
		}
		return list
	}
	w.ingest(a, batch(large(1)...))
	w.awaitMetric(`meterplex_http_request_bytes{kind="ingest"} 0`) // a request's charge ends shortly after its answer
	before := w.stored()
	var held []net.Conn
	for range 3 { // each is charged for the bytes that it has sent, and little more
		held = append(held, w.stallRequest(a.key, 150_000, strings.Repeat(" ", 100_000)))
	}
	w.awaitMetric(fmt.Sprint(`meterplex_http_request_bytes{kind="ingest"} `, 3*(32<<10+128<<10)))
	sent := call{"POST", "/api/v1/usage/events", a.key, nil, batch(large(2)...)}
	refused := w.do(sent)
	w.refused(refused, 503, "overloaded")
	if w.stored() != before || w.refusedCount("memory") == 0 {
		t.Errorf("%d events are stored instead of %d", w.stored(), before)
	}
	w.ingest(b, batch(large(3)...)) // one tenant may hold at most half of it
	for _, conn := range held {
		conn.Close()
	}
	for refused.status != 202 {
		refused = w.do(sent)
	}
	w.awaitMetric(`meterplex_http_request_bytes{kind="ingest"} 0`)
}

// overloadedLog is a log that returns Overloaded while full is set.
type overloadedLog struct {
	metering.UsageLog
	full bool
}

func (d *overloadedLog) Admit(tenant uuid.UUID) error {
	if d.full {
		return &commands.Overloaded{Wait: 2500 * time.Millisecond}
	}
	return d.UsageLog.Admit(tenant)
}

func TestOverloadIsRefusedBeforeTheBodyIsRead(t *testing.T) {
	d := &overloadedLog{full: true}
	w, a := newServiceWithAccount(t, func(s *http.Server) { d.UsageLog, s.Ingest.Log = s.Ingest.Log, d })
	before := w.stored()
	got := w.raw("POST /api/v1/usage/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer "+
		"%s\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n",
		a.key)
	if !strings.HasPrefix(got, "HTTP/1.1 503") || !strings.Contains(got, "Retry-After: 3") {
		t.Errorf("a client that sends Expect: 100-continue is answered %s", got)
	}
	sent := call{"POST", "/api/v1/usage/events", a.key, nil, batch(event("1", nil))}
	refused := w.do(sent)
	w.refused(refused, 503, "overloaded")
	if refused.header.Get("Retry-After") != "3" || w.stored() != before || w.refusedCount("queue") != 2 {
		t.Errorf("%v", refused.header)
	}
	d.full = false
	w.want(202, sent)
	w.same("stored", w.stored(), before+1)
}

func TestReadersLeaveIngestItsConnections(t *testing.T) {
	var readers *testService
	w, a := newServiceWithAccount(t, func(s *http.Server) {
		readers = newTestService(t)
		s.Reads = models.NewReads(query.DB{Pool: readers.pool}, nil, models.DefaultFolds(), time.Now, 0)
	})
	for range readers.pool.Config().MaxConns {
		conn, err := readers.pool.Acquire(context.Background())
		w.must(err)
		defer conn.Release()
	}
	refused := w.do(call{method: "GET", path: "/api/v1/usage/conflicts", key: a.key})
	w.refused(refused, 503, "overloaded")
	w.same("refusals that are counted", w.refusedCount("database"), 1)
	w.ingest(a, batch(event("1", nil)))
}

// TestSmallBodiesUseLittleMemory: bodies that declare a window of 8 MiB, and bombs of 64 MiB, whose memory stays within the limit of a
// body.
func TestSmallBodiesUseLittleMemory(t *testing.T) {
	w, a := newServiceWithAccount(t)
	var windowed bytes.Buffer
	z, err := zstd.NewWriter(&windowed, zstd.WithWindowSize(8<<20), zstd.WithEncoderConcurrency(1))
	w.must(err)
	_, err = z.Write([]byte(`{"events":`))
	w.must(err)
	w.must(z.Flush()) // so that the frame does not declare its content size
	_, err = z.Write(bytes.Repeat([]byte(" "), 1<<20))
	w.must(errors.Join(err, z.Close()))
	before := w.stored()
	for _, c := range []struct {
		coding string
		body   []byte
		status int
		most   uint64
	}{{"zstd", windowed.Bytes(), 400, 6 * mib}, {"gzip", zipped(make([]byte, 64*mib)), 413, 24 * mib}} {
		const requests = 16
		var start, end runtime.MemStats
		var all sync.WaitGroup
		runtime.ReadMemStats(&start)
		for range requests {
			all.Go(func() {
				got := w.do(call{"POST", "/api/v1/usage/events", a.key, map[string]string{"Content-Encoding": c.coding}, c.body})
				if got.status != c.status && got.status != 503 { // refused alone, or too large together
					t.Errorf("%d %s", got.status, got.body)
				}
			})
		}
		all.Wait()
		runtime.ReadMemStats(&end)
		if each := (end.TotalAlloc - start.TotalAlloc) / requests; each > c.most {
			t.Errorf("a body of %s takes %d bytes", c.coding, each)
		}
	}
	w.same("stored", w.stored(), before)
}
