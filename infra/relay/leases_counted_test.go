package relay_test

import (
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
)

// cutDatabase returns a proxy before the database of a fixture, and the address of the database through it.
func (w *relayFixture) cutDatabase() (*toxiproxy.Proxy, string) {
	w.t.Helper()
	u, err := url.Parse(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, "database", "127.0.0.1:0", u.Host)
	if err := proxy.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(proxy.Stop)
	u.Host = proxy.Listen
	return proxy, u.String()
}

// A relay that cannot renew its leases reports none once they have expired, so that the alert on partitions without a
// lease fires although the relay runs.
func TestARelayWithoutItsDatabaseReportsNoLeases(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newRelayFixture(t)
	proxy, through := w.cutDatabase()
	r := w.relay("one")
	r.Pool = openPool(t, through)
	var leases atomic.Int64
	r.Observe.Leases = func(partitions int) { leases.Store(int64(partitions)) }
	defer w.start(r)()
	w.until("all leases are reported", func() bool { return leases.Load() == events.Partitions })
	proxy.Stop()
	w.within(20*r.LeaseTTL, "no leases are reported without the database", func() bool { return leases.Load() == 0 })
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	w.until("all leases are reported again", func() bool { return leases.Load() == events.Partitions })
}
