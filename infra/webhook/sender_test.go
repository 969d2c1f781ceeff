package webhook

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

func loopback() webhook.Addresses {
	return webhook.Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
}

func newSender(t *testing.T, c Config) *Sender {
	t.Helper()
	s := NewSender(c)
	t.Cleanup(s.Close)
	return s
}

func message(url string) webhook.Message {
	return webhook.Message{URL: url, Operators: true, EventID: uuid.MustParse("01890000-0000-7000-8000-000000000001"),
		Body: []byte(vectorBody), Secrets: []string{vectorSecret}, At: time.Unix(vectorTime, 0)}
}

func TestARequestHasTheHeadersOfStandardWebhooks(t *testing.T) {
	got := make(chan *http.Request, 1)
	body := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got <- r
		body <- string(text)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	m := message(server.URL + "/hooks?x=1")
	r := newSender(t, Config{Addresses: loopback()}).Send(t.Context(), m)
	if r.Status != http.StatusNoContent || r.Error != "" || !r.Delivered() || r.Duration <= 0 {
		t.Fatalf("%+v", r)
	}
	signature, _ := sign(m.Secrets, m.EventID.String(), m.At, m.Body)
	req := <-got
	for name, want := range map[string]string{"webhook-id": m.EventID.String(), "webhook-timestamp": "1614265330",
		"webhook-signature": signature, "Content-Type": "application/json"} {
		if v := req.Header.Get(name); v != want {
			t.Errorf("%s is %q instead of %q", name, v, want)
		}
	}
	if text := <-body; text != vectorBody || req.Method != http.MethodPost || req.URL.RequestURI() != "/hooks?x=1" {
		t.Errorf("%s %s %q", req.Method, req.URL.RequestURI(), text)
	}
}

// The traceparent names the event, as its records' does, in each attempt and without traces. It is not signed.
func TestARequestNamesTheTraceOfItsEvent(t *testing.T) {
	got := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	var spans []string
	attempt := func(ctx context.Context, name string, of events.TracedEvent) (context.Context, func(int)) {
		return ctx, func(status int) { spans = append(spans, fmt.Sprint(name, " ", of.Trace, " ", of.EventID, " ", status)) }
	}
	m := message(server.URL)
	plain := newSender(t, Config{Addresses: loopback()})
	plain.Send(t.Context(), m)
	without := <-got
	if without.Values("Traceparent") != nil {
		t.Errorf("an event without a trace has the traceparent %q", without.Values("Traceparent"))
	}
	m.Trace = uuid.MustParse("4bf92f35-77b3-4da6-a3ce-929d0e0e4736")
	want := string(events.AppendTraceParent(nil, m.Trace, m.EventID))
	for _, s := range []*Sender{plain, plain, newSender(t, Config{Addresses: loopback(), Attempt: attempt})} {
		s.Send(t.Context(), m)
		header := <-got
		if list := header.Values("Traceparent"); len(list) != 1 || list[0] != want {
			t.Errorf("the traceparent is %q, want %s", list, want)
		}
		if header.Get("webhook-signature") != without.Get("webhook-signature") {
			t.Error("the traceparent changes the signature")
		}
	}
	m.URL = "http://127.0.0.1:1"
	newSender(t, Config{Addresses: loopback(), Attempt: attempt}).Send(t.Context(), m)
	of := "send webhook " + m.Trace.String() + " " + m.EventID.String()
	if !slices.Equal(spans, []string{of + " 418", of + " 0"}) {
		t.Errorf("the attempts are %q", spans)
	}
}

func TestOnly2xxIsSuccessAndRedirectsAreNotFollowed(t *testing.T) {
	var reached atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer target.Close()
	status := atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", target.URL)
		w.WriteHeader(int(status.Load()))
	}))
	defer server.Close()
	s := newSender(t, Config{Addresses: loopback()})
	for code, delivered := range map[int]bool{200: true, 204: true, 299: true, 301: false, 302: false, 307: false, 308: false, 400: false,
		410: false, 500: false} {
		status.Store(int64(code))
		if r := s.Send(t.Context(), message(server.URL)); r.Status != code || r.Delivered() != delivered || r.Error != "" {
			t.Errorf("%d: %+v", code, r)
		}
	}
	if reached.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

func TestAPrivateAddressIsNotDialed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer func() { _ = listener.Close() }()
	var dialed atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			dialed.Add(1)
			_ = conn.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	s := newSender(t, Config{})
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254", "10.0.0.1",
		"[fd00::1]"} {
		for _, scheme := range []string{"http://", "https://"} {
			if r := s.Send(t.Context(), message(scheme+host+":"+port)); r.Status != 0 ||
				!strings.Contains(r.Error, "private or not allowed") {
				t.Errorf("%s%s: %+v", scheme, host, r)
			}
		}
	}
	if dialed.Load() != 0 {
		t.Errorf("%d connections were made", dialed.Load())
	}
	public := newSender(t, Config{Addresses: webhook.Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}})
	for _, host := range []string{"192.0.2.1", "8.8.8.8"} { // the second is public: https may reach it
		if r := public.Send(t.Context(), message("http://"+host+":"+port)); !strings.Contains(r.Error, "private or not allowed") {
			t.Errorf("http to an address that is not allowed: %+v", r)
		}
	}
}

// TestATenantsURLReachesNoAllowedNetwork: METERPLEX_WEBHOOK_ALLOW is for the URLs that operators set, also over a connection that one of
// them left open.
func TestATenantsURLReachesNoAllowedNetwork(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	s, operators, tenants := newSender(t, Config{Addresses: loopback()}), message(server.URL), message(server.URL)
	tenants.Operators = false
	for range 2 {
		if r := s.Send(t.Context(), operators); !r.Delivered() {
			t.Errorf("an operator's: %+v", r)
		}
		if r := s.Send(t.Context(), tenants); r.Status != 0 || !strings.Contains(r.Error, "private or not allowed") {
			t.Errorf("a tenant's: %+v", r)
		}
	}
}

// TestANameThatChangesIsCheckedAtTheDial has a name server that answers an allowed address, which no host has, and then the loopback. The
// address of the answer that is dialed must be checked, not that of another look-up.
func TestANameThatChangesIsCheckedAtTheDial(t *testing.T) {
	var reached atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	names := newNames(t, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("127.0.0.1"))
	rules := webhook.Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	send := func(ctx context.Context, m webhook.Message) webhook.Result { // by its own resolver: two lookups of one share an answer
		return newSender(t, Config{Addresses: rules, Resolver: names.resolver(), Timeout: time.Minute}).Send(ctx, m)
	}
	m := message("http://rebinding.example:" + port)
	if refusal := rules.CheckURL(m.URL); refusal != nil {
		t.Fatal(refusal)
	}
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		for names.asked.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		leave() // the address of the first answer has no host
	}()
	first, second := send(ctx, m), send(t.Context(), m)
	if reached.Load() != 0 {
		t.Errorf("the loopback was reached %d times", reached.Load())
	}
	if first.Status != 0 || !strings.Contains(second.Error, "private or not allowed") || strings.Contains(second.Error, "127.") ||
		names.asked.Load() < 2 {
		t.Errorf("%+v, %+v, %d questions", first, second, names.asked.Load())
	}
}

func TestTheTimeOfARequestIsBounded(t *testing.T) {
	stop := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(stop)
	r := newSender(t, Config{Addresses: loopback(), Timeout: 50 * time.Millisecond}).Send(t.Context(), message(server.URL))
	if r.Status != 0 || r.Error != "no answer within 50ms" {
		t.Errorf("%+v", r)
	}
}

func TestAnEndlessAnswerEndsTheRequest(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	if r := newSender(t, Config{Addresses: loopback()}).Send(t.Context(), message(server.URL)); r.Status != 200 {
		t.Errorf("%+v", r)
	}
}

func TestFailuresNameNoAddressAndNoSecret(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	address := closed.Addr().String()
	_ = closed.Close()
	tlsServer := httptest.NewTLSServer(http.NotFoundHandler())
	defer tlsServer.Close()
	tlsServer.Config.ErrorLog = nil
	s := newSender(t, Config{Addresses: loopback()})
	for url, want := range map[string]string{
		"http://" + address: "the connection was refused",
		tlsServer.URL:       "the TLS connection failed: the certificate is not valid for the host",
	} {
		if r := s.Send(t.Context(), message(url)); r.Error != want || r.Status != 0 {
			t.Errorf("%s: %+v", url, r)
		}
	}
	m := message("http://" + address)
	m.Secrets = []string{"whsec_c2hvcnQ="}
	if r := s.Send(t.Context(), m); strings.Contains(r.Error, "c2hvcnQ") || r.Error == "" {
		t.Errorf("%+v", r)
	}
}

func TestNoProxyOfTheEnvironmentIsUsed(t *testing.T) {
	var proxied atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { proxied.Add(1) }))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("HTTPS_PROXY", proxy.URL)
	s := newSender(t, Config{Addresses: loopback(), Timeout: 5 * time.Second})
	for _, client := range s.clients {
		if transport, ok := client.Transport.(*http.Transport); !ok || transport.Proxy != nil {
			t.Error("the transport has a proxy")
		}
	}
	_ = s.Send(t.Context(), message("http://127.0.0.2:1"))
	if proxied.Load() != 0 {
		t.Error("the proxy was used")
	}
}

// names is a name server on UDP.
type names struct {
	conn  net.PacketConn
	addrs []netip.Addr
	asked atomic.Int64 // for A records
}

// newNames answers the first question with the first address, and so on; the last one answers all later questions.
func newNames(t *testing.T, addrs ...netip.Addr) *names {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	must.OK(t, err)
	n := &names{conn: conn, addrs: addrs}
	done := make(chan struct{})
	go func() { defer close(done); n.serve() }()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return n
}

func (n *names) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", n.conn.LocalAddr().String())
	}}
}

// serve answers each question for an A record with the address, and others with no record.
func (n *names) serve() {
	buffer := make([]byte, 1500)
	for {
		size, from, err := n.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		end := 12
		for end < size && buffer[end] != 0 {
			end += int(buffer[end]) + 1
		}
		question := buffer[12 : end+5]
		answer := append([]byte{buffer[0], buffer[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
		if binary.BigEndian.Uint16(question[len(question)-4:]) == 1 {
			asked := n.asked.Add(1)
			answer[7] = 1
			answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
			answer = append(answer, n.addrs[min(int(asked), len(n.addrs))-1].AsSlice()...)
		}
		_, _ = n.conn.WriteTo(answer, from)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
