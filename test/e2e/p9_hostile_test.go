package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	bigendian "encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// Memory of a pod that serves the API, as the chart limits it, and the service's own limit, which the chart sets.
const (
	limitOfPod = 768 << 20
	limitOfGo  = "GOMEMLIMIT=768000000"
)

// hostile are tenants, and clients without a key, that take all that they can of one instance.
type hostile struct {
	w       *deployment
	at      *instance
	tls     *tls.Config
	tenants []*tenant
	victim  *tenant
	n       int  // of the victim's rounds so far
	busy    bool // the attackers' work takes the processors
}

// TestP9_HostileTenantsBesideAnInstance: 1, 4 and 8 tenants, or clients without a key, attack an instance with the memory of a pod in each
// way that was seen to end one, as fast as they can. Another tenant and an operator are answered, nearly as fast as without.
func TestP9_HostileTenantsBesideAnInstance(t *testing.T) {
	tier.AtSize(t)
	w := newDeployment(t)
	ca, roots := localtest.NewCA(t, "hostile"), x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca.PEM))
	h := &hostile{w: w, tls: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, ServerName: "127.0.0.1"}}
	w.http.Transport.(*http.Transport).TLSClientConfig = h.tls.Clone()
	cert, key := ca.Sign(t, "meterplex", 24*time.Hour, "127.0.0.1").Files(t)
	h.at = w.serve("", "METERPLEX_HTTP_TLS_CERT="+cert, "METERPLEX_HTTP_TLS_KEY="+key, limitOfGo)
	w.catalogue(h.at)
	h.tenants = w.createTenants(h.at, 9)
	h.victim, h.tenants = h.tenants[8], h.tenants[:8]
	for _, x := range h.tenants {
		for n := range 2 {
			w.ingest(h.at, x, "accepted", events(fmt.Sprint("large-", n), 1000, features()[0])...)
		}
	}
	w.drain()
	const rounds = 200
	alone := h.work("alone", rounds)
	for _, attack := range []struct {
		name string
		run  func(ctx context.Context, of *sync.WaitGroup, x *tenant)
		busy int // from so many attackers on, their own work takes the processors: only the answers are compared
	}{
		{"ingest whose bodies never come", h.stall, 9},
		{"answers that are not read", h.unread, 9},
		{"bodies of 450,000 names", h.names, 1},
		{"unknown keys", h.unknown, 1},
		{"idle connections", h.idle, 8},
		{"wrong sign-in forms", h.signIn, 1},
	} {
		for _, n := range []int{1, 4, 8} {
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			for _, x := range h.tenants[:n] {
				attack.run(ctx, &running, x)
			}
			time.Sleep(2 * time.Second)
			name, slow := fmt.Sprintf("%s, of %d", attack.name, n), ""
			var during map[string]time.Duration
			if h.busy = n >= attack.busy; h.busy {
				h.work(name, rounds/10)
			} else {
				during = h.work(name, rounds)
				for again := 0; slower(during, alone) != "" && again < 4; again++ { // another program may have had the processors
					during = h.work(name, rounds)
				}
				slow = slower(during, alone)
			}
			cancel()
			running.Wait()
			if slow != "" { // another program may have them still
				if slow = slower(during, h.work("alone again", rounds)); slow != "" {
					t.Errorf("%s: %s", name, slow)
				}
			}
		}
	}
	most := memoryOf(t, h.at, "VmHWM")
	if t.Logf("memory: %d MiB at most", most>>10); most > limitOfPod>>10 {
		t.Errorf("the instance used %d KiB", most)
	}
}

// work does the victim's and an operator's work in rounds, one request after the other, on open connections and on new ones. Each has to be
// answered.
func (h *hostile) work(name string, rounds int) map[string]time.Duration {
	h.w.t.Helper()
	took := map[string][]time.Duration{}
	ask := func(what, key, method, path string, in any) {
		began := time.Now()
		status, body, err := h.w.call(h.w.t.Context(), key, method, h.at.url()+path, in)
		for again := 0; h.busy && status == http.StatusServiceUnavailable && again < 4; again++ { // as a client does
			status, body, err = h.w.call(h.w.t.Context(), key, method, h.at.url()+path, in)
		}
		if err != nil || status/100 != 2 {
			h.w.t.Errorf("%s, %s: %d %v %s", name, what, status, err, body)
		}
		took[what] = append(took[what], time.Since(began))
	}
	for round := range rounds {
		if round%20 == 0 {
			h.w.http.CloseIdleConnections()
		}
		h.n++
		batch := object{"events": events(fmt.Sprint("victim-", h.n), 1, features()[0])}
		ask("ingest", h.victim.key, http.MethodPost, "/api/v1/usage/events", batch)
		ask("check", h.victim.key, http.MethodGet, "/api/v1/entitlements/"+features()[0]+"/check", nil)
		ask("operator", h.w.operator, http.MethodGet, "/api/v1/tenants?limit=10", nil)
	}
	p99 := map[string]time.Duration{}
	for what, list := range took {
		slices.Sort(list)
		p99[what] = list[len(list)*99/100]
		h.w.t.Logf("%s, %s: p50 %s, p99 %s", name, what, list[len(list)/2], p99[what])
	}
	return p99
}

// slower names the work whose p99 is more than three times that without an attack; "" if no work is.
func slower(p99, alone map[string]time.Duration) (what string) {
	for name := range p99 {
		if p99[name] > 3*max(alone[name], 20*time.Millisecond) {
			what += fmt.Sprintf("p99 of %s %s instead of %s; ", name, p99[name], alone[name])
		}
	}
	return what
}

// connect opens a connection with one protocol.
func (h *hostile) connect(ctx context.Context, protocol string) (net.Conn, error) {
	config := h.tls.Clone()
	config.NextProtos = []string{protocol}
	address, err := url.Parse(h.at.url())
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{Config: config}
	return dialer.DialContext(ctx, "tcp", address.Host)
}

// hold opens a connection n times, sends on it, and waits until the service closes it, again and again.
func (h *hostile) hold(ctx context.Context, of *sync.WaitGroup, n int, protocol string, sent []byte) {
	for range n {
		of.Go(func() {
			for ctx.Err() == nil {
				conn, err := h.connect(ctx, protocol)
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				if _, err = conn.Write(sent); err == nil {
					_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
					_, _ = io.Copy(io.Discard, conn)
				}
				stop()
				_ = conn.Close()
			}
		})
	}
}

func (h *hostile) stall(ctx context.Context, of *sync.WaitGroup, x *tenant) {
	const sent = "POST /api/v1/usage/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n" +
		"Content-Length: 300\r\n\r\n{"
	h.hold(ctx, of, 400, "http/1.1", fmt.Appendf(nil, sent, x.key))
}

// unread asks for a large list on each of 200 streams, whose windows are 0.
func (h *hostile) unread(ctx context.Context, of *sync.WaitGroup, x *tenant) {
	frame := func(kind, flags byte, stream uint32, payload []byte) []byte {
		head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
		return append(bigendian.BigEndian.AppendUint32(head, stream), payload...)
	}
	sent := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, 0, 0, []byte{0, 4, 0, 0, 0, 0})...) // an initial window of 0
	var header []byte
	for _, field := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":path", "/api/v1/usage/events?limit=1000"},
		{":authority", "x"}, {"authorization", "Bearer " + x.key}} {
		header = append(append(header, 0, byte(len(field[0]))), field[0]...)
		header = append(append(header, byte(len(field[1]))), field[1]...)
	}
	for i := range 200 {
		sent = append(sent, frame(1, 5, uint32(2*i+1), header)...)
	}
	h.hold(ctx, of, 2, "h2", sent)
}

// send sends a request by n clients, again and again. It may be refused.
func (h *hostile) send(ctx context.Context, of *sync.WaitGroup, n int, made func() *http.Request) {
	for range n {
		of.Go(func() {
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: h.tls.Clone()}}
			client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				answer, err := client.Do(made().WithContext(ctx))
				if err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
				}
			}
		})
	}
}

func (h *hostile) request(method, path, key, media string, body io.Reader) *http.Request {
	r, err := http.NewRequest(method, h.at.url()+path, body)
	must.OK(h.w.t, err)
	r.Header.Set("Content-Type", media)
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	return r
}

func (h *hostile) names(ctx context.Context, of *sync.WaitGroup, x *tenant) {
	var body bytes.Buffer
	body.WriteString(`{"events":[{"a":1`)
	for n := range 400_000 {
		fmt.Fprintf(&body, `,"%x":1`, n)
	}
	body.WriteString(`}]}`)
	h.send(ctx, of, 4, func() *http.Request {
		return h.request(http.MethodPost, "/api/v1/usage/events", x.key, "application/json", bytes.NewReader(body.Bytes()))
	})
}

func (h *hostile) unknown(ctx context.Context, of *sync.WaitGroup, _ *tenant) {
	h.send(ctx, of, 16, func() *http.Request {
		key := "mp_live_" + (strings.ReplaceAll(uuid.NewString()+uuid.NewString(), "-", ""))[:43]
		return h.request(http.MethodGet, "/api/v1/entitlements", key, "application/json", nil)
	})
}

func (h *hostile) idle(ctx context.Context, of *sync.WaitGroup, _ *tenant) {
	h.hold(ctx, of, 600, "http/1.1", []byte("GET / HTTP/1.1\r\n"))
}

func (h *hostile) signIn(ctx context.Context, of *sync.WaitGroup, _ *tenant) {
	h.send(ctx, of, 8, func() *http.Request {
		r := h.request(http.MethodPost, "/console/sign-in", "", "application/x-www-form-urlencoded", strings.NewReader("key=x"))
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		return r
	})
}
