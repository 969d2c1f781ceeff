package http_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
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
		catalogue := &store.Catalogue{Pool: f.readers, Seat: func(ctx context.Context) (context.Context, func(), error) {
			return f.seats.Reader(ctx, edge.TenantOf(ctx))
		}}
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

// hang blocks all reads of a table, and begins n reads, in turn those given. It returns once
// each is refused or hangs, with the function that ends the block and returns the answers by status.
func (f *fairnessFixture) hang(table string, n int, reads ...call) (end func() map[int]int) {
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

func (w *testService) until(what string, so func() bool) {
	w.Helper()
	for end := time.Now().Add(5 * time.Minute); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatal("not so within 5 minutes: " + what)
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

// The reads of one tenant hang, or those of operators, who together are one reader, or every connection that lists may take. All others,
// checks that are
// not cached, the system's reads and ingest are answered; further reads of that tenant are refused.
func TestP9_AnotherTenantsHangingReadsAreNotFelt(t *testing.T) {
	f := newFairnessFixture(t)
	get := func(key, path string) call { return call{method: "GET", path: path, key: key} }
	system := []call{get(bootstrap, "/api/v1/system/identity"), get(bootstrap, "/api/v1/system")}
	b := append(system, get(f.b.key, "/api/v1/usage/aggregates"), get(f.b.key, "/api/v1/usage/conflicts"))
	operators := f.slow(bootstrap, "?tenantId="+f.a.id)
	hooks := "/api/v1/tenants/" + f.a.id + "/webhooks"
	hook := f.want(201, call{"POST", hooks, f.a.key, nil, `{"url":"https://example.com/x","events":["push.failed"]}`})["id"].(string)
	for _, c := range []struct {
		name, table  string
		hang, answer []call
		connections  int32
	}{
		{"a tenant", "dead_letter_events", f.slow(f.a.key, ""), append(b, get(bootstrap, "/api/v1/tenants"),
			get(bootstrap, "/api/v1/usage/aggregates?tenantId="+f.b.id)), readConnections / 4},
		{"a tenant's webhooks", "webhooks", []call{get(f.a.key, hooks), get(f.a.key, hooks+"/"+hook)},
			append(b, get(bootstrap, "/api/v1/tenants")), readConnections / 4},
		{"operators", "dead_letter_events", operators, append(b, get(f.a.key, "/api/v1/usage/aggregates")), readConnections / 4},
		{"all", "dead_letter_events", slices.Concat(f.slow(f.a.key, ""), f.slow(f.b.key, ""), operators), system,
			readConnections - reservedConnections},
	} {
		end := f.hang(c.table, 66, c.hang...)
		f.same(c.name+": hanging connections", f.readers.Stat().AcquiredConns(), c.connections)
		for range 5 {
			for _, answered := range c.answer {
				f.want(200, answered)
			}
		}
		f.checksAndIngest()
		if got := end(); got[200] != int(c.connections) || got[503] != 66-int(c.connections) {
			t.Errorf("%s: answers by status: %v", c.name, got)
		}
		f.nothingHeld()
	}
	f.want(200, get(f.a.key, "/api/v1/usage/events"))
}

// answered sends a request until it is answered: on a busy machine a seat may become free too late. Without a free seat, it never does.
func (f *fairnessFixture) answered(status int, c call) {
	f.Helper()
	for range 20 {
		if f.do(c).status == status {
			return
		}
	}
	f.want(status, c)
}

// TestP9_ManyTenantsWithSlowReadsLeaveOthersSeats: reads of n tenants hang until they are ended. Reads of another tenant and of operators,
// light and heavy, are answered; an operator's read that hangs is not ended.
func TestP9_ManyTenantsWithSlowReadsLeaveOthersSeats(t *testing.T) {
	f := newFairnessFixture(t)
	light, heavy := "/api/v1/usage/aggregates", "/api/v1/usage/aggregates?asOf="+url.QueryEscape(time.Now().UTC().Format(time.RFC3339))
	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	block, err := f.pool.Begin(ctx)
	f.must(err)
	defer func() { _ = block.Rollback(context.Background()) }() // a failed test waits for the reads
	_, err = block.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE dead_letter_events IN ACCESS EXCLUSIVE MODE`)
	f.must(err)
	var operators atomic.Int64
	all.Go(func() {
		got := f.do(f.slow(bootstrap, "?tenantId="+f.a.id)[1])
		operators.Store(int64(got.status))
	})
	var ended atomic.Int64
	for n := 1; n <= 8; n++ {
		hostile := f.a
		if n > 1 {
			hostile = f.newAccount(fmt.Sprint("hostile ", n))
		}
		for _, c := range slices.Repeat(f.slow(hostile.key, ""), 2) {
			all.Go(func() {
				for ctx.Err() == nil {
					if got := f.do(c); got.status == 503 && strings.Contains(string(got.body), "was ended") {
						ended.Add(1)
					}
				}
			})
		}
		if n != 1 && n != 4 && n != 8 {
			continue
		}
		f.until("seats are taken", func() bool {
			return f.readers.Stat().AcquiredConns() >= int32(min(n+2, readConnections-reservedConnections))
		})
		for range 3 {
			for _, path := range []string{light, heavy} {
				f.answered(200, call{method: "GET", path: path, key: f.b.key})
				f.answered(200, call{method: "GET", path: path + map[bool]string{true: "?", false: "&"}[path == light] + "tenantId=" +
					f.b.id, key: bootstrap})
			}
			f.answered(200, call{method: "GET", path: "/api/v1/tenants", key: bootstrap})
		}
	}
	if ended.Load() == 0 || operators.Load() != 0 {
		t.Errorf("%d reads were ended, an operator's was answered %d", ended.Load(), operators.Load())
	}
	stop()
	f.must(block.Rollback(context.Background()))
	all.Wait()
	f.same("the operator's read", int(operators.Load()), 200)
	f.nothingHeld()
}

// A stream whose page finds the connections of its tenant taken continues later.
func TestP9_StreamsOutlastTheirTenantsOtherReads(t *testing.T) {
	f := newFairnessFixture(t)
	tail := f.listen(t.Context(), f.a.key, "", "")
	end := f.hang("dead_letter_events", 8, f.slow(f.a.key, "")...)
	time.Sleep(5 * time.Second / 2) // a read waits 1 s for a connection
	f.ingest(f.a, batch(event("2", nil)))
	end()
	if e, ok := tail.next(); !ok || !strings.Contains(e, "usage.event.recorded") {
		t.Errorf("the stream ended, or sent %q", e)
	}
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

// The keys of n tenants change their webhooks while their partition is slow, on 8 connections each. The changes of operators and of another
// tenant in other partitions are answered.
func TestP9_ManyTenantsChangesLeaveOthersSeats(t *testing.T) {
	f := newFairnessFixture(t)
	slow := (events.PartitionOf(events.Platform) + 1) % events.Partitions
	b := f.newAccountIn("B", func(p int16) bool { return p != slow })
	hook := func(a *account) call {
		path := "/api/v1/tenants/" + a.id + "/webhooks"
		made := f.want(201, call{"POST", path, a.key, nil, `{"url":"https://example.com/x","events":["push.failed"]}`})
		return call{"PATCH", path + "/" + made["id"].(string), a.key, nil, `{"status":"ENABLED"}`}
	}
	var changes []call
	for i := range 8 {
		changes = append(changes, hook(f.newAccountIn(fmt.Sprint("hostile ", i), func(p int16) bool { return p == slow })))
	}
	other := hook(b)
	block, err := f.pool.Begin(t.Context())
	f.must(err)
	var all sync.WaitGroup
	defer all.Wait()
	var stopped atomic.Bool
	defer func() {
		stopped.Store(true)
		_ = block.Rollback(context.Background())
	}()
	_, err = block.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`)
	f.must(err)
	_, err = block.Exec(t.Context(), `SELECT FROM log_heads WHERE partition = $1 FOR UPDATE`, slow)
	f.must(err)
	var refused atomic.Int64
	for i, c := range changes {
		for range 8 {
			all.Go(func() {
				for !stopped.Load() {
					if f.do(c).status == 503 {
						refused.Add(1)
					}
				}
			})
		}
		if n := i + 1; n == 1 || n == 4 || n == 8 {
			before := refused.Load()
			f.until("changes are refused", func() bool { return refused.Load() > before+8 })
			for k := range 5 {
				f.answered(200, other)
				f.answered([]int{201, 200}[min(i, 1)], call{"PUT", fmt.Sprint("/api/v1/features/f", k), bootstrap, nil,
					`{"name":"F","type":"BOOLEAN"}`})
			}
		}
	}
}
