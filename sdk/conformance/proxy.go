package conformance

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy forwards requests to a service, and fails as it is told. It keeps each request.
type proxy struct {
	t      testing.TB
	url    string
	target string
	server *httptest.Server
	client *http.Client
	closed chan struct{}
	cert   atomic.Pointer[tls.Certificate]

	mu       sync.Mutex
	next     []fault // of the next requests
	always   fault   // of the others; nil: they pass
	requests []*request
	running  int
	most     int // of requests under way at once
}

// fault answers a request, or not.
type fault func(e *exchange)

// request is what the proxy saw of a request.
type request struct {
	at     time.Time
	method string
	path   string // with the query
	header http.Header
	body   []byte            // without compression; nil: not read
	events []json.RawMessage // of a batch
	status int               // of the answer that was sent; 0: none
}

// ids returns the eventIds of a batch.
func (r *request) ids() (ids []string) {
	for _, raw := range r.events {
		var e struct{ EventID string }
		_ = json.Unmarshal(raw, &e)
		ids = append(ids, e.EventID)
	}
	return ids
}

func (r *request) isBatch() bool {
	return r.method == http.MethodPost && strings.HasPrefix(r.path, "/api/v1/usage/events")
}

// newProxy starts a proxy of a service; with a certificate it serves TLS.
func newProxy(t testing.TB, target string, cert *tls.Certificate) *proxy {
	t.Helper()
	p := &proxy{t: t, target: target, closed: make(chan struct{}), client: &http.Client{
		Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 8},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	p.server = httptest.NewUnstartedServer(p)
	p.server.Config.ErrorLog = quiet()
	if cert == nil {
		p.server.Start()
	} else {
		p.cert.Store(cert)
		// A configuration of its own for each connection: httptest has a certificate, too, and sessions must not outlive a certificate.
		p.server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*p.cert.Load()}}, nil
		}}
		p.server.StartTLS()
	}
	p.url = p.server.URL
	t.Cleanup(func() {
		close(p.closed)
		p.server.CloseClientConnections()
		p.server.Close()
		p.client.CloseIdleConnections()
	})
	return p
}

// present replaces the certificate, also of connections that are open.
func (p *proxy) present(cert *tls.Certificate) {
	p.cert.Store(cert)
	p.server.CloseClientConnections()
}

// fails sets the faults of the next requests, one each.
func (p *proxy) fails(list ...fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = list
}

// failsAlways sets the fault of all requests from now on; nil: they pass.
func (p *proxy) failsAlways(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.always = f
}

// ServeHTTP serves a request by its fault.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := &exchange{p: p, w: w, r: r, seen: &request{at: time.Now(), method: r.Method, path: r.URL.RequestURI(), header: r.Header}}
	p.mu.Lock()
	p.requests = append(p.requests, e.seen)
	p.running++
	p.most = max(p.most, p.running)
	f := p.always
	if len(p.next) > 0 {
		f, p.next = p.next[0], p.next[1:]
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.running--
		p.mu.Unlock()
	}()
	if f == nil {
		f = passes
	}
	f(e)
}

// seen returns the requests so far.
func (p *proxy) seen() []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]request, len(p.requests))
	for i, r := range p.requests {
		list[i] = *r
	}
	return list
}

// batches returns the requests with usage so far.
func (p *proxy) batches() (list []request) {
	for _, r := range p.seen() {
		if r.isBatch() {
			list = append(list, r)
		}
	}
	return list
}

// faultsLeft counts the faults that no request has met.
func (p *proxy) faultsLeft() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.next)
}

// mostAtOnce returns how many requests were under way at once.
func (p *proxy) mostAtOnce() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

// exchange is a request under way.
type exchange struct {
	p    *proxy
	w    http.ResponseWriter
	r    *http.Request
	raw  []byte // of the body, as it was sent
	seen *request
}

// answer is a response of the service.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// read reads the whole request. It ends the exchange if the client has gone within it.
func (e *exchange) read() {
	if e.seen.body != nil {
		return
	}
	var err error
	if e.raw, err = io.ReadAll(e.r.Body); err != nil {
		e.cut()
	}
	body := e.raw
	if e.r.Header.Get("Content-Encoding") == "gzip" {
		if z, err := gzip.NewReader(bytes.NewReader(e.raw)); err != nil {
			e.p.t.Errorf("a request that is not gzip: %v", err)
		} else if body, err = io.ReadAll(z); err != nil {
			e.p.t.Errorf("a request that is not gzip: %v", err)
		}
	}
	var batch struct{ Events []json.RawMessage }
	_ = json.Unmarshal(body, &batch)
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	e.seen.body, e.seen.events = append([]byte{}, body...), batch.Events
}

// forward lets the service execute the request, and returns its answer.
func (e *exchange) forward() answer {
	e.read()
	out, err := http.NewRequestWithContext(e.r.Context(), e.r.Method, e.p.target+e.r.URL.RequestURI(), bytes.NewReader(e.raw))
	if err != nil {
		e.p.t.Error(err)
		e.cut()
	}
	out.Header = e.r.Header.Clone()
	got, err := e.p.client.Do(out)
	if err != nil {
		e.cut() // as the service did
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		e.cut()
	}
	return answer{got.StatusCode, got.Header, body}
}

// reply sends an answer.
func (e *exchange) reply(a answer) {
	for name, values := range a.header {
		if name != "Content-Length" && name != "Transfer-Encoding" && name != "Connection" {
			e.w.Header()[name] = values
		}
	}
	e.p.mu.Lock()
	e.seen.status = a.status
	e.p.mu.Unlock()
	e.w.WriteHeader(a.status)
	_, _ = e.w.Write(a.body) // a client that has gone is a case of its own
}

// cut ends the connection without an answer.
func (e *exchange) cut() { panic(http.ErrAbortHandler) }

// closedPort is an address at which no one listens.
func closedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}
