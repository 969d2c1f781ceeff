package console

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// attemptTime is the time after which refused attempts may be repeated.
const attemptTime = time.Minute

// attempts bounds how often one name, and all together, may attempt something in attemptTime. It is in memory: each instance counts its own.
type attempts struct {
	ofOne, ofAll int // bounds

	mu    sync.Mutex
	since time.Time
	all   int
	of    map[string]int
}

// begin counts an attempt, and reports whether it may be made.
func (a *attempts) begin(name string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if age := now.Sub(a.since); age >= attemptTime || age < 0 {
		a.since, a.all, a.of = now, 0, map[string]int{}
	}
	if a.all >= a.ofAll || a.of[name] >= a.ofOne {
		return false
	}
	a.all++
	a.of[name]++
	return true
}

// succeed removes the last attempt of a name from its bound.
func (a *attempts) succeed(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[name] > 0 {
		a.all--
		a.of[name]--
	}
}

// remoteOf returns the address of a request: of IPv6 the network, whose addresses one host may choose.
func remoteOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Unmap().Is4() {
		return host
	}
	network, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return host
	}
	return network.String()
}
