package http_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
)

// fairnessFixture is a service whose reads have a pool of their own, shared as in production.
type fairnessFixture struct {
	*testService
	readers *pgxpool.Pool
	seats   *query.Seats
	a, b    *account
}

// readConnections is the size of a pool of reads, of which three connections are reserved.
const readConnections, reservedConnections = 8, 3

func newFairnessFixture(t *testing.T) *fairnessFixture {
	f := &fairnessFixture{seats: query.NewSeats(readConnections, reservedConnections)}
	f.testService = newTestService(t, func(s *http.Server) {
		config := s.Reads.Events.Pool.Config()
		config.MaxConns = readConnections
		config.ConnConfig.RuntimeParams["lock_timeout"] = "0" // so that a read hangs as long as the test wants
		var err error
		if f.readers, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.readers.Close)
		grants := entitlements.NewCache(s.Reads.Events.Pool, f.readers)
		grants.UseSeats(f.seats)
		s.Reads = models.NewReads(query.DB{Pool: f.readers, Seats: f.seats}, grants, models.DefaultFolds(), time.Now, 0)
		catalogue := &store.Catalogue{Pool: f.readers, Seat: func(ctx context.Context) (func(), error) { return f.seats.Reader(ctx, edge.TenantOf(ctx)) }}
		s.Reader, s.WebhookReader, s.ThresholdReader = catalogue, catalogue, catalogue
	})
	f.openSessions()
	f.catalogue()
	f.a, f.b = f.newAccount("A"), f.newAccount("B")
	f.ingest(f.a, batch(event("1", nil)))
	f.ingest(f.b, batch(event("1", nil)))
	f.fold()
	return f
}

// openSessions fills the pool: on a busy machine a new session may take longer than a read waits.
func (f *fairnessFixture) openSessions() {
	f.Helper()
	for range readConnections {
		conn, err := f.readers.Acquire(context.Background())
		f.must(err)
		defer conn.Release()
	}
}

// hang blocks all reads of usage events, and begins n reads, in turn those given. It returns once
// each is refused or hangs, with the function that ends the block and returns the answers by status.
func (f *fairnessFixture) hang(n int, reads ...call) (end func() map[int]int) {
	f.Helper()
	return f.hangOn("dead_letter_events", n, reads...)
}

// hangOn is hang for reads of another table.
func (f *fairnessFixture) hangOn(table string, n int, reads ...call) (end func() map[int]int) {
	f.Helper()
	ctx := context.Background()
	block, err := f.pool.Begin(ctx)
	f.must(err)
	release := sync.OnceFunc(func() { _ = block.Rollback(ctx) })
	f.Cleanup(release)
	_, err = block.Exec(ctx, `LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`)
	f.must(err)
	var all sync.WaitGroup
	var mu sync.Mutex
	count := map[int]int{}
	for i := range n {
		all.Go(func() {
			got := f.do(reads[i%len(reads)])
			if got.status != 200 {
				f.refused(got, 503, "overloaded")
			}
			mu.Lock()
			defer mu.Unlock()
			count[got.status]++
		})
	}
	f.until("each read is refused or hangs", func() bool {
		var hanging int
		f.must(f.pool.QueryRow(ctx, `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
			WHERE d.datname = current_database() AND NOT l.granted`).Scan(&hanging))
		mu.Lock()
		defer mu.Unlock()
		return hanging > 0 && count[503]+hanging == n
	})
	return func() map[int]int { release(); all.Wait(); return count }
}

func (f *fairnessFixture) until(what string, so func() bool) {
	f.Helper()
	for end := time.Now().Add(5 * time.Minute); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			f.Fatal("not so within 5 minutes: " + what)
		}
	}
}

// nothingHeld checks that every connection and every seat was returned.
func (f *fairnessFixture) nothingHeld() {
	f.Helper()
	f.until("connections and seats are returned", func() bool { return f.readers.Stat().AcquiredConns() == 0 && f.seats.InUse() == 0 })
}

// slow are reads that hang: a list, which is heavy, and a receipt.
func (f *fairnessFixture) slow(key, tenant string) []call {
	list := call{method: "GET", path: "/api/v1/usage/events" + tenant, key: key}
	receipt := call{method: "GET", path: "/api/v1/usage/events/1" + tenant, key: key}
	return []call{list, receipt}
}

// One tenant's reads hang, 64 at a time. Other tenants, checks that are not cached, the system's
// reads, operators and ingest are answered, and the tenant's further reads are refused.
func TestP9_AnotherTenantsHangingReadsAreNotFelt(t *testing.T) {
	f := newFairnessFixture(t)
	end := f.hang(64, f.slow(f.a.key, "")...)
	for range 5 {
		f.want(200, call{method: "GET", path: "/api/v1/usage/aggregates", key: f.b.key})
		f.want(200, call{method: "GET", path: "/api/v1/usage/conflicts", key: f.b.key})
		f.want(200, call{method: "GET", path: "/api/v1/system/identity", key: bootstrap})
		f.want(200, call{method: "GET", path: "/api/v1/tenants", key: bootstrap})
		f.want(200, call{method: "GET", path: "/api/v1/usage/aggregates?tenantId=" + f.b.id, key: bootstrap})
	}
	f.checksAndIngest()
	if got := end(); got[200] != readConnections/4 || got[503] != 64-readConnections/4 {
		t.Errorf("answers by status: %v", got)
	}
	f.nothingHeld()
	f.want(200, call{method: "GET", path: "/api/v1/usage/events", key: f.a.key})
}

// A stream whose page finds the connections of its tenant taken continues later.
func TestP9_StreamsOutlastTheirTenantsOtherReads(t *testing.T) {
	f := newFairnessFixture(t)
	tail := f.listen(t.Context(), f.a.key, "", "")
	end := f.hang(8, f.slow(f.a.key, "")...)
	time.Sleep(5 * time.Second / 2) // a read waits 1 s for a connection
	f.ingest(f.a, batch(event("2", nil)))
	end()
	if e, ok := tail.next(); !ok || !strings.Contains(e, "usage.event.recorded") {
		t.Errorf("the stream ended, or sent %q", e)
	}
}

// Operators together are one reader: their reads leave connections to all tenants.
func TestP9_OperatorsHangingReadsAreNotFelt(t *testing.T) {
	f := newFairnessFixture(t)
	end := f.hang(64, f.slow(bootstrap, "?tenantId="+f.a.id)...)
	for range 5 {
		f.want(200, call{method: "GET", path: "/api/v1/usage/aggregates", key: f.a.key})
		f.want(200, call{method: "GET", path: "/api/v1/system/identity", key: bootstrap})
	}
	f.checksAndIngest()
	end()
	f.nothingHeld()
}

// Every connection that lists may take hangs. The system's reads and the loads of checks have
// connections of their own.
func TestP9_ChecksAndTheSystemHaveConnectionsOfTheirOwn(t *testing.T) {
	f := newFairnessFixture(t)
	reads := slices.Concat(f.slow(f.a.key, ""), f.slow(f.b.key, ""), f.slow(bootstrap, "?tenantId="+f.a.id))
	end := f.hang(66, reads...)
	if n := f.readers.Stat().AcquiredConns(); n != readConnections-reservedConnections {
		t.Fatalf("%d connections hang", n)
	}
	for range 5 {
		f.want(200, call{method: "GET", path: "/api/v1/system/identity", key: bootstrap})
		f.want(200, call{method: "GET", path: "/api/v1/system", key: bootstrap})
	}
	f.checksAndIngest()
	end()
	f.nothingHeld()
}

// checksAndIngest checks entitlements that are not cached, and sends usage, for both tenants.
func (f *fairnessFixture) checksAndIngest() {
	f.Helper()
	for _, x := range []*account{f.a, f.b} {
		f.want(200, call{method: "GET", path: "/api/v1/entitlements/api_calls/check", key: x.key})
		f.want(200, call{method: "POST", path: "/api/v1/entitlements/check", key: x.key, body: `{"features":[{"feature":"sso"}]}`})
		f.ingest(x, batch(event("later", nil)))
	}
}
