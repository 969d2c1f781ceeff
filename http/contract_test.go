package http_test

import (
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// TestAllowNamesEveryMethodInOneLine: many clients read only the first line of a header.
func TestAllowNamesEveryMethodInOneLine(t *testing.T) {
	w := newTestService(t)
	for path, want := range map[string]string{
		"/api/v1/usage/events": "GET, HEAD, POST", "/api/v1/tenants/x": "GET, HEAD, PATCH", "/api/v1/plans/x": "GET, HEAD, PUT",
		"/api/v1/tenants/x/api-keys/y": "DELETE", "/api/v1/entitlements/check": "POST", "/api/v1/entitlements/consume": "POST",
		"/api/v1/entitlements/x/consume": "POST", "/livez": "GET, HEAD",
	} {
		got := w.do(call{method: "TRACE", path: path})
		w.refused(got, 405, "method_not_allowed")
		if allow := got.header.Values("Allow"); len(allow) != 1 || allow[0] != want {
			t.Errorf("%s: Allow is %q instead of %q", path, allow, want)
		}
	}
	for _, asked := range []string{"OPTIONS * HTTP/1.1", "GET /api/v1/usages HTTP/1.1",
		"POST /api/v1/entitlements/api_calls/consumption HTTP/1.1", "GET /consoles HTTP/1.1"} {
		got := w.raw("%s\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", asked)
		if !strings.HasPrefix(got, "HTTP/1.1 404") || !strings.Contains(got, "X-Request-Id: ") ||
			!strings.Contains(got, `"code":"not_found"`) {
			t.Errorf("%s: %s", asked, got)
		}
	}
}

// TestRefusalsReachClientsThatSendBeforeReading: a client that sends its whole body first would
// lose the answer if its connection were closed.
func TestRefusalsReachClientsThatSendBeforeReading(t *testing.T) {
	w, a := newServiceWithAccount(t)
	const json, text = "Content-Type: application/json\r\n", "Content-Type: text/plain\r\n"
	for _, c := range []struct {
		path, header, key string
		size, status      int
	}{
		{"usage/events", json, a.key, 5 << 20, 413}, {"usage/events", json, a.key, 12 << 20, 413},
		{"usage/events", json, a.key, 64 << 20, 413}, {"usage/events", json, "none", 64 << 20, 401},
		{"usage/events", json + "Content-Encoding: gzip\r\n", a.key, 4 << 20, 400}, {"usage/events", text, a.key, 4 << 20, 415},
		{"usage/events", json, "none", 4 << 20, 401}, {"usage/events", json, a.reader, 4 << 20, 403},
		{"nowhere", json, a.key, 4 << 20, 404},
		{"tenants/x", json, a.key, 4 << 20, 405}, {"usage/events?x=1", json, a.key, 4 << 20, 400},
	} {
		head := fmt.Sprintf("POST /api/v1/%s HTTP/1.1\r\nHost: x\r\n%sAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", c.path,
			c.header, c.key, c.size)
		got, err := w.sendAll(head, c.size)
		if err != nil || !strings.HasPrefix(got, fmt.Sprintf("HTTP/1.1 %d ", c.status)) {
			t.Errorf("%s, %d bytes: not %d: %v %.200s", c.path, c.size, c.status, err, got)
		}
	}
	// A client that announces far too much, or waits for 100-continue, is answered without its body.
	for _, header := range []string{"Content-Length: 99999999999", "Content-Length: 5242880\r\nExpect: 100-continue"} {
		got, err := w.sendAll("POST /api/v1/usage/events HTTP/1.1\r\nHost: x\r\n"+json+"Authorization: Bearer "+a.key+"\r\n"+header+
			"\r\n\r\n", 0)
		if err != nil || !strings.HasPrefix(got, "HTTP/1.1 413 ") {
			t.Errorf("%s: %v %.200s", header, err, got)
		}
	}
}

// TestRefusedRequestsHoldNoSlot: while the server drains the body of a refused request,
// the request does not count as in flight.
func TestRefusedRequestsHoldNoSlot(t *testing.T) {
	w, a := newServiceWithAccount(t, func(s *http.Server) { s.Limits.Requests = 2 })
	const json, text = "Content-Type: application/json\r\n", "Content-Type: text/plain\r\n"
	for i, c := range []struct {
		key, header string
		size        int
	}{{"none", json, 1 << 20}, {a.key, text, 1 << 20}, {a.key, json, 5 << 20}, {a.key, json + "Meterplex-Replay: x\r\n", 1 << 20}} {
		for range 4 {
			conn, err := net.Dial("tcp", w.addr)
			w.must(err)
			defer conn.Close()
			_, err = fmt.Fprintf(conn, "POST /api/v1/usage/events HTTP/1.1\r\nHost: x\r\n%sAuthorization: Bearer %s\r\nContent-Length: "+
				"%d\r\n\r\n{",
				c.header, c.key, c.size)
			w.must(err)
		}
		sent := call{"POST", "/api/v1/usage/events", a.key, nil, batch(event(fmt.Sprint("in-their-midst-", i), nil))}
		began := time.Now()
		for got := w.do(sent); got.status != 202; got = w.do(sent) { // until they are refused
			w.overShare(got)
		}
		if took := time.Since(began); took > 8*time.Second && !testing.Short() { // they are drained for ten seconds
			t.Errorf("kind %d: a refused request held its slot for %s", i, took)
		}
	}
}

// TestHTTP2IsAnsweredBeforeTheBody: HTTP/2 clients read while they send, and one
// connection carries hundreds of requests, so the server does not drain refused bodies.
func TestHTTP2IsAnsweredBeforeTheBody(t *testing.T) {
	handler, err := (&http.Server{}).Handler()
	must.OK(t, err)
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	body, sender := io.Pipe()
	defer sender.Close()
	got, err := server.Client().Post(server.URL+"/nowhere", "application/json", body)
	must.OK(t, err)
	defer got.Body.Close()
	if got.ProtoMajor != 2 || got.StatusCode != nethttp.StatusNotFound {
		t.Errorf("HTTP/%d, %s", got.ProtoMajor, got.Status)
	}
}

// Shutdown does not wait for the rest of a refused body: a client may send slowly.
func TestAStopWaitsForNoRefusedBody(t *testing.T) {
	tier.AtSize(t) // it compares times
	w := newTestService(t)
	stop := w.startServer(func(*nethttp.Server) {})
	conn, err := net.Dial("tcp", w.addr)
	w.must(err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
	w.must(err)
	_, err = conn.Read(make([]byte, 12)) // its refusal; the rest of its body is being drained
	w.must(err)
	began := time.Now()
	w.must(stop(t.Context()))
	if took := time.Since(began); took > 7*time.Second { // the drain deadline is ten seconds
		t.Errorf("the stop took %v", took)
	}
}

// sendAll sends a head and the announced number of bytes, all of them before it reads.
func (w *testService) sendAll(head string, size int) (string, error) {
	w.Helper()
	conn, err := net.Dial("tcp", w.addr)
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(time.Minute)))
	if _, err := io.WriteString(conn, head+strings.Repeat("x", size)); err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, err := conn.Read(answer)
	return string(answer[:n]), err
}
