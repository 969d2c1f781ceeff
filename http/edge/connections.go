package edge

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/http/admission"
)

// maxConnections is the maximum number of open client connections.
const maxConnections = 4096

// spareConnections are reserved above the clients' bound, so that health checks and
// metrics scrapes still reach a full service.
const spareConnections = 256

// connections are the open connections of a server. A new connection above a bound closes the one that was idle longest: connections
// cost little, so a client without a key could otherwise keep all others out.
type connections struct {
	most      int64           // of all
	ofAddress int64           // of one address; 0: no bound
	kept      admission.Bound // requests that keep their connection open
	tenantOf  func(uuid.UUID) *admission.Tenant
	closed    prometheus.Counter

	mu   sync.Mutex
	open map[net.Conn]*connection
	of   map[string]int64 // by address
}

// connection is idle while no request with a valid key is in work on it, within the share of its tenant: a client without a key decides how
// long its requests last.
type connection struct {
	net.Conn
	all     *connections
	address string
	inWork  atomic.Int64 // requests with a valid key
	since   atomic.Int64 // the time of its last request in nanoseconds, or of its end
}

type connectionKey struct{}

type spareKey struct{}

func newConnections(most, ofAddress int64, tenantOf func(uuid.UUID) *admission.Tenant) *connections {
	return &connections{most: most, ofAddress: ofAddress, kept: admission.BoundOf(most), tenantOf: tenantOf,
		open: map[net.Conn]*connection{}, of: map[string]int64{},
		closed: prometheus.NewCounter(prometheus.CounterOpts{Name: "meterplex_http_idle_connections_closed_total",
			Help: "Idle connections that were closed to make room for new ones: of all clients, or of one address."})}
}

// connected adds a connection. Above the bounds it closes an idle connection. Without one, the first request is answered with a
// refusal; above the spare connections, the connection is closed without an answer.
func (t *connections) connected(ctx context.Context, c net.Conn) context.Context {
	n := &connection{Conn: c, all: t, address: AddressOf(c.RemoteAddr().String())}
	n.touch(time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	room := t.makeRoom(n.address)
	if int64(len(t.open)) >= t.most+spareConnections {
		_ = c.Close()
		return ctx
	}
	t.open[c] = n
	t.of[n.address]++
	if ctx = context.WithValue(ctx, connectionKey{}, n); !room {
		ctx = context.WithValue(ctx, spareKey{}, true)
	}
	return ctx
}

// makeRoom reports whether there is room for a connection of an address, after it has closed an idle one if necessary.
func (t *connections) makeRoom(address string) bool {
	switch {
	case t.ofAddress > 0 && t.of[address] >= t.ofAddress:
		return t.closeIdle(address)
	case int64(len(t.open)) >= t.most:
		return t.closeIdle("")
	}
	return true
}

// closeIdle closes the connection that was idle longest, of one address if it is not "". It reports whether there was one.
func (t *connections) closeIdle(address string) bool {
	var longest *connection
	for _, c := range t.open {
		if c.inWork.Load() == 0 && (address == "" || c.address == address) && (longest == nil || c.since.Load() < longest.since.Load()) {
			longest = c
		}
	}
	if longest == nil {
		return false
	}
	t.remove(longest)
	t.closed.Inc()
	_ = longest.underTLS().Close()
	return true
}

// underTLS returns the connection that carries TLS: to close TLS itself may wait for the client.
func (c *connection) underTLS() net.Conn {
	if secured, ok := c.Conn.(interface{ NetConn() net.Conn }); ok {
		return secured.NetConn()
	}
	return c.Conn
}

func (t *connections) remove(c *connection) {
	delete(t.open, c.Conn)
	if t.of[c.address]--; t.of[c.address] == 0 {
		delete(t.of, c.address)
	}
}

// changed removes a connection that was closed.
func (t *connections) changed(c net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.open[c]; n != nil {
		t.remove(n)
	}
}

// Load returns the number of open connections.
func (t *connections) Load() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(len(t.open))
}

func (c *connection) touch(at time.Time) { c.since.Store(at.UnixNano()) }

// begin notes a request of the connection.
func (x *Exchange) begin(ctx context.Context, at time.Time) {
	if x.on, _ = ctx.Value(connectionKey{}).(*connection); x.on != nil {
		x.on.touch(at)
	}
}

// Keep keeps the connection open while the request is in work: its key, or the session of the console, is valid. Above the share of its
// tenant the connection counts as idle. Operators (Nil) have no shares.
func (x *Exchange) Keep(tenant uuid.UUID) {
	if x.on == nil || x.kept {
		return
	}
	if tenant != uuid.Nil {
		x.keeps = &x.on.all.tenantOf(tenant).Connections
	}
	if x.kept = x.on.all.kept.Acquire(1, x.keeps); x.kept {
		x.on.inWork.Add(1)
	}
}

// leave undoes Keep: the request is answered, or refused.
func (x *Exchange) leave() {
	if !x.kept {
		return
	}
	x.kept = false
	x.on.touch(time.Now())
	x.on.inWork.Add(-1)
	x.on.all.kept.Release(1, x.keeps)
}

// sharing returns the number of requests that the connection has in work, at least this one.
func (x *Exchange) sharing() int64 {
	if x.on == nil {
		return 1
	}
	return max(1, x.on.inWork.Load())
}

// AddressOf returns the address of a client that http.Request.RemoteAddr names: of IPv6 the network, whose addresses one host may choose.
func AddressOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if addr = addr.Unmap(); addr.Is4() {
		return addr.String()
	}
	network, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return host
	}
	return network.String()
}
