package edge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/internal/must"
)

const operatorKey = "mp_op_0123456789abcdef0123456789abcdef"

// doorFixture is a server with one route for operators, which answers when its request may end.
type doorFixture struct {
	*testing.T
	*Edge
	addr string
	held chan struct{} // a request in work
	end  chan struct{} // closed: held requests end
}

func newDoorFixture(t *testing.T, c Config) *doorFixture {
	t.Helper()
	c.BootstrapOperatorKey = operatorKey
	e, err := New(c)
	must.OK(t, err)
	f := &doorFixture{t, e, "", make(chan struct{}), make(chan struct{})}
	route := &auth.Route{Method: "GET", Path: "/", Who: auth.AnyKey}
	server := NewServer("", e.Handle(e.Guard(route, nil, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/held":
			f.held <- struct{}{}
			<-f.end
		case "/slow":
			<-f.end
		}
		_, _ = io.WriteString(w, "yes")
	}))))
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	f.addr = listener.Addr().String()
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
	return f
}

// dial connects from an address of 127.0.0.0/8 and sends a text.
func (f *doorFixture) dial(host byte, text string) net.Conn {
	f.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}}
	c, err := dialer.Dial("tcp", f.addr)
	must.OK(f.T, err)
	f.Cleanup(func() { _ = c.Close() })
	_, _ = io.WriteString(c, text) // the connection may be closed already
	return c
}

func get(path string) string { return getAs(operatorKey, path) }

func getAs(key, path string) string {
	return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", path, key)
}

// tenants has a key for each tenant, whose last digits are its number.
type tenants struct{}

func tenantKey(n int) string { return fmt.Sprintf("mp_live_%043d", n) }

func (tenants) Find(_ context.Context, hash [32]byte) (*domain.APIKey, *domain.Tenant, commands.CatalogueAt, error) {
	for n := range 10 {
		if id := (uuid.UUID{15: byte(n + 1)}); hash == catalogue.HashSecret(tenantKey(n)) {
			var key domain.APIKey
			var tenant domain.Tenant
			key.ID, key.TenantID, key.Mode, tenant.ID, tenant.Status = id, id, "live", id, domain.TenantActive
			return &key, &tenant, commands.CatalogueAt{}, nil
		}
	}
	return nil, nil, commands.CatalogueAt{}, nil
}

// status reads an answer; 0: the connection is closed.
func status(t *testing.T, from net.Conn) int {
	t.Helper()
	_ = from.SetReadDeadline(time.Now().Add(time.Minute))
	answer, err := http.ReadResponse(bufio.NewReader(from), nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	return answer.StatusCode
}

// idleForms are what clients without a key send to hold a connection.
var idleForms = []string{"", "GET / HTTP/1.1\r\nHost: x\r\n", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
	"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer mp_op_" + "another_key_of_32_characters_and_more" +
		"\r\nContent-Length: 100\r\n\r\n"}

// However many connections clients without a key hold, from however many addresses, a client with a key gets in, and none with a request
// in work is closed.
func TestP9_IdleConnectionsKeepNobodyOut(t *testing.T) {
	for _, hostile := range []int{1, 4, 8} {
		f := newDoorFixture(t, Config{MaxConnections: 16})
		working := f.dial(1, get("/held"))
		<-f.held
		for n := range 48 {
			f.dial(byte(2+n%hostile), idleForms[n%len(idleForms)])
			if n%4 > 0 {
				continue
			}
			c := f.dial(1, get("/"))
			if got := status(t, c); got != http.StatusOK {
				t.Fatalf("beside %d connections of %d addresses: %d", n+1, hostile, got)
			}
		}
		if n := f.connections.Load(); n > 16 {
			t.Errorf("%d connections are open", n)
		}
		close(f.end)
		if got := status(t, working); got != http.StatusOK {
			t.Errorf("the request in work: %d", got)
		}
	}
}

// However many connections tenants hold, by requests in work or by refused ones whose bodies do not come, another tenant gets in.
func TestP9_TenantsLeaveOthersConnections(t *testing.T) {
	for name, send := range map[string]string{
		"in work": "GET /slow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n",
		"refused, with a body": "POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nMeterplex-Reason: %%zz\r\nContent-Length: " +
			"100\r\n\r\n",
	} {
		for _, hostile := range []int{1, 4, 8} {
			f := newDoorFixture(t, Config{MaxConnections: 64, Keys: tenants{}})
			for n := range 80 * hostile {
				f.dial(1, fmt.Sprintf(send, tenantKey(n/80)))
				if n%16 > 0 {
					continue
				}
				if got := status(t, f.dial(1, getAs(tenantKey(9), "/"))); got != http.StatusOK {
					t.Fatalf("%s: beside %d connections of %d tenants: %d", name, n+1, hostile, got)
				}
			}
			if n := f.connections.Load(); n > 64 {
				t.Errorf("%s: %d connections are open", name, n)
			}
			close(f.end)
			for end := time.Now().Add(5 * time.Second); f.connections.kept.Load() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%s: %d answered requests keep their connections", name, f.connections.kept.Load())
				}
			}
		}
	}
}

// With a bound by address, a client closes only connections of its own: the idle ones of others stay open.
func TestP9_AnAddressClosesItsOwnConnections(t *testing.T) {
	for _, hostile := range []int{1, 4} {
		f := newDoorFixture(t, Config{MaxConnections: 16, AddressConnections: 3})
		idle := f.dial(1, get("/"))
		first := status(t, idle)
		for n := range 48 {
			f.dial(byte(2+n%hostile), idleForms[n%len(idleForms)])
		}
		last := f.dial(2, get("/")) // it is accepted after the others
		if got := status(t, last); got != http.StatusOK {
			t.Errorf("another connection of a hostile address: %d", got)
		}
		if n := f.connections.Load(); n > int64(1+3*hostile) {
			t.Errorf("%d connections of %d addresses are open", n, 1+hostile)
		}
		_, _ = io.WriteString(idle, get("/"))
		if again := status(t, idle); first != http.StatusOK || again != http.StatusOK {
			t.Errorf("the connection of another address: %d, then %d", first, again)
		}
	}
}

// TestAddressOf: a host of IPv6 may choose the last 64 bits.
func TestAddressOf(t *testing.T) {
	for from, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1", "[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64", "[fe80::1%eth0]:80": "fe80::/64",
		"[::ffff:10.0.0.1]:80": "10.0.0.1", "@": "@", "": "",
	} {
		if got := AddressOf(from); got != want {
			t.Errorf("%s: %s", from, got)
		}
	}
}
