package e2e

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/meterplex/meterplex/infra/local/localtest/kafkatest"
	"github.com/meterplex/meterplex/internal/tier"
)

// badNetwork is a network between two processes, with injected faults.
type badNetwork struct {
	*toxiproxy.Proxy
	t      testing.TB
	behind atomic.Value // the proxy's own address, a string; "" while the network is cut
	before net.Listener
	bytes  atomic.Int64 // received from both sides
	ends   sync.WaitGroup
}

func newBadNetwork(t testing.TB, name, to string) *badNetwork {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	x := &badNetwork{Proxy: toxiproxy.NewProxy(server, name, "127.0.0.1:0", to), t: t}
	if err := x.Start(); err != nil {
		t.Fatal(err)
	}
	x.behind.Store(x.Listen)
	var err error
	if x.before, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	x.ends.Go(x.accept)
	t.Cleanup(func() {
		_ = x.before.Close()
		x.Stop()
		x.ends.Wait()
	})
	return x
}

// address is the address to connect to.
func (x *badNetwork) address() string { return x.before.Addr().String() }

// accept counts the bytes before the proxy delays or drops them.
func (x *badNetwork) accept() {
	for {
		in, err := x.before.Accept()
		if err != nil {
			return
		}
		behind, out := x.behind.Load().(string), net.Conn(nil)
		if behind != "" {
			out, err = net.Dial("tcp", behind)
		}
		if out == nil || err != nil {
			x.bytes.Add(1) // the network is cut, and a client noticed
			_ = in.Close()
			continue
		}
		pass := func(to, from net.Conn) {
			defer to.Close()
			defer from.Close()
			buffer := make([]byte, 64<<10)
			for {
				n, err := from.Read(buffer)
				if n > 0 {
					x.bytes.Add(int64(n))
					_, _ = to.Write(buffer[:n])
				}
				if err != nil {
					return
				}
			}
		}
		x.ends.Go(func() { pass(out, in) })
		x.ends.Go(func() { pass(in, out) })
	}
}

// networkFault is a network fault, from its beginning to its end.
type networkFault struct {
	name     string
	lasts    time.Duration
	toxics   []string // JSON
	cut      bool
	bothWays bool
}

// networkFaults returns the faults. A cut network refuses connections; a half-open one
// accepts bytes and drops them.
func networkFaults() []networkFault {
	return []networkFault{
		{name: "cut", lasts: time.Second, cut: true},
		{name: "half open", lasts: 4 * time.Second, toxics: []string{`{"name":"%s","type":"timeout","stream":"%s","attributes":{"timeout":0}}`}, bothWays: true},
		{name: "no answers", lasts: 3 * time.Second, toxics: []string{`{"name":"%s","type":"timeout","stream":"%s","attributes":{"timeout":0}}`}},
		{name: "one byte at a time", lasts: time.Second, toxics: []string{`{"name":"%s","type":"slicer","stream":"%s","attributes":{"average_size":1,"delay":10}}`}, bothWays: true},
		{name: "late", lasts: time.Second, toxics: []string{`{"name":"%s","type":"latency","stream":"%s","attributes":{"latency":100,"jitter":90}}`}, bothWays: true},
	}
}

// trafficTime bounds the wait until traffic meets a fault.
const trafficTime = time.Minute

// awaitTraffic waits as long as a fault lasts, and until bytes have arrived meanwhile: a client that
// backs off after the previous fault returns within seconds.
func (x *badNetwork) awaitTraffic(f networkFault, before int64) (met bool) {
	time.Sleep(f.lasts)
	for end := time.Now().Add(trafficTime); !met && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		met = x.bytes.Load() > before
	}
	return met
}

// inject begins and ends a fault, and reports whether traffic met it.
func (x *badNetwork) inject(f networkFault) bool {
	before := x.bytes.Load()
	if f.cut {
		x.behind.Store("")
		x.Stop()
		before = x.bytes.Load()
		defer func() {
			x.Listen = "127.0.0.1:0" // another process may have the old port by now
			if err := x.Start(); err != nil {
				x.t.Error(err)
			}
			x.behind.Store(x.Listen)
		}()
		return x.awaitTraffic(f, before)
	}
	ways := []string{"downstream"}
	if f.bothWays {
		ways = append(ways, "upstream")
	}
	var names []string
	for _, toxic := range f.toxics {
		for _, way := range ways {
			name := f.name + " " + way
			if _, err := x.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(toxic, name, way))); err != nil {
				x.t.Error(err)
			}
			names = append(names, name)
		}
	}
	met := x.awaitTraffic(f, before)
	for _, name := range names {
		if err := x.Toxics.RemoveToxic(context.Background(), name); err != nil {
			x.t.Error(err)
		}
	}
	return met
}

// P1, P2: each network between two processes is cut, half open, slow and split into single
// bytes. Usage acknowledged meanwhile is stored once; the service recovers by itself.
func TestP2_NetworkFaults(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	broker := kafkatest.Broker(t).Brokers()[0]
	at, err := url.Parse(w.db)
	if err != nil {
		t.Fatal(err)
	}
	database := at.Host
	wires := map[string]*badNetwork{}
	through := func(name, roles string) *instance {
		toBroker, toDatabase := newBadNetwork(t, name+" and broker", broker), newBadNetwork(t, name+" and database", database)
		wires[toBroker.Name], wires[toDatabase.Name] = toBroker, toDatabase
		by := *at
		by.Host = toDatabase.address()
		i := w.prepare(roles, "DATABASE_URL="+by.String(), "METERPLEX_FAULT_BROKER="+toBroker.address())
		i.build = faulty
		i.start()
		return i
	}
	front := through("front", "api,relay")
	back := through("consumers", "validator,aggregator,deadletter,commands,projector")
	w.catalogue(front)
	tenants := w.createTenants(front, 2)
	l := w.startLoad(tenants, 1, lightTraffic(), func(int) string { return front.url() })
	w.awaitFolded(front, "meterplex-usage-aggregator")
	var failing sync.WaitGroup
	for name, x := range wires {
		failing.Go(func() {
			for _, f := range networkFaults() {
				if !x.inject(f) {
					t.Errorf("no traffic on the network of %s while it was %s", name, f.name)
				}
				time.Sleep(500 * time.Millisecond)
			}
		})
	}
	failing.Wait()
	for _, i := range []*instance{front, back} {
		if !i.alive() {
			t.Fatalf("%s ended when its network failed:\n%s", i.name, i.lastLines(30))
		}
	}
	l.awaitMore(100)
	l.stop()
	w.settle(front, tenants...)
	t.Logf("%d requests had no answer or 503", l.lost())
	w.checkNoneWithheld()
	w.finish()
}
