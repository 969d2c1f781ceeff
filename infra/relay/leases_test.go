package relay_test

import (
	"context"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// slowHeartbeats is a pool whose server has not answered the heartbeats yet. A heartbeat that its caller cancels
// is written late: the server had it already.
type slowHeartbeats struct {
	relay.Pool
	sent   chan struct{}
	answer chan struct{}
	late   []func()
}

func (p *slowHeartbeats) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if !strings.Contains(sql, "INSERT INTO relay_instances") {
		return p.Pool.QueryRow(ctx, sql, args...)
	}
	select {
	case p.sent <- struct{}{}:
	default:
	}
	select {
	case <-p.answer:
		return p.Pool.QueryRow(ctx, sql, args...)
	case <-ctx.Done():
		p.late = append(p.late, func() { _ = p.Pool.QueryRow(context.Background(), sql, args...).Scan(new(int)) })
		return cancelled{ctx.Err()}
	}
}

type cancelled struct{ err error }

func (c cancelled) Scan(...any) error { return c.err }

// A relay that has stopped is not live: no heartbeat of it comes after its row is deleted.
func TestAHeartbeatEndsBeforeTheRelayStops(t *testing.T) {
	t.Parallel()
	w := newRelayFixture(t)
	r := w.relay("one")
	r.LeaseTTL = time.Minute // a round may take half of it
	pool := &slowHeartbeats{Pool: r.Pool, sent: make(chan struct{}, 1), answer: make(chan struct{})}
	r.Pool = pool
	stop := w.start(r)
	<-pool.sent
	time.AfterFunc(500*time.Millisecond, func() { close(pool.answer) })
	stop()
	for _, write := range pool.late {
		write()
	}
	if n := w.int(`SELECT count(*) FROM relay_instances`); n != 0 {
		t.Errorf("%d relays are live after the only one has stopped", n)
	}
}

// cutDatabase returns a proxy before the database of a fixture, and the address of the database through it.
func (w *relayFixture) cutDatabase() (*toxiproxy.Proxy, string) {
	w.t.Helper()
	u, err := url.Parse(w.url)
	must.OK(w.t, err)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, "database", "127.0.0.1:0", u.Host)
	must.OK(w.t, proxy.Start())
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
	must.OK(t, proxy.Start())
	w.until("all leases are reported again", func() bool { return leases.Load() == events.Partitions })
}
