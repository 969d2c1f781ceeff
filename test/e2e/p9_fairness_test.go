package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// fairness holds two tenants: A reads as fast as it can, B works beside it.
type fairness struct {
	w    *deployment
	at   *instance
	a, b *tenant
	n    int // rounds of B so far
}

// P9: one tenant reads on many connections, in each way that costs much. All requests of another tenant, and of an
// operator, are answered meanwhile.
func TestP9_OneTenantsReadsAreNotFeltByAnother(t *testing.T) {
	tier.AtSize(t)
	w := newDeployment(t)
	f := &fairness{w: w, at: w.serve("")}
	w.catalogue(f.at)
	tenants := w.createTenants(f.at, 2)
	f.a, f.b = tenants[0], tenants[1]
	w.ingest(f.at, f.b, "accepted", events("first", 10, features()[0])...)
	for n := range 20 {
		w.ingest(f.at, f.a, "accepted", events(fmt.Sprint("a", n), 1000, features()[0])...)
	}
	w.drain()
	const rounds = 60
	f.work("alone", rounds)

	// Each of these lists waits for the lock until the service's lock_timeout refuses it, and its seat is
	// taken by the next one.
	block, err := w.sql.Begin(t.Context())
	must.OK(t, err)
	defer func() { _ = block.Rollback(context.Background()) }()
	_, err = block.Exec(t.Context(), `LOCK TABLE dead_letter_events IN ACCESS EXCLUSIVE MODE`)
	must.OK(t, err)
	const rejected = "/api/v1/usage/events?status=REJECTED"
	stop := f.read(12, rejected)
	within(t, "a list of A hangs", func(context.Context) (bool, string) {
		n := w.count(`SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database()
 AND NOT l.granted`)
		return n > 0, fmt.Sprint(n, " locks are waited for")
	})
	f.work("beside lists that hang", rounds/3)
	stop()
	must.OK(t, block.Rollback(t.Context()))

	now := time.Now().UTC()
	figures := "/api/v1/usage/aggregates?asOf=" + now.Format(time.RFC3339)
	explained := "/api/v1/usage/aggregates/explain?feature=" + features()[0] + "&period=" + now.Format("2006-01")
	for name, paths := range map[string][]string{
		"beside lists of rejected events":   {rejected},
		"beside figures of the past":        {figures, explained},
		"beside reads of the whole history": {"/api/v1/usage/events", figures, explained},
	} {
		stop := f.read(16, paths...)
		f.work(name, rounds)
		stop()
	}
}

// read reads the paths in turn on n connections as A, until it is stopped. A may be refused.
func (f *fairness) read(n int, paths ...string) (stop func()) {
	ctx, cancel := context.WithCancel(f.w.t.Context())
	var all sync.WaitGroup
	for client := range n {
		all.Go(func() {
			for turn := client; ctx.Err() == nil; turn++ {
				path := paths[turn%len(paths)]
				status, body, err := f.w.call(ctx, f.a.key, http.MethodGet, f.at.url()+path, nil)
				if err == nil && status != http.StatusOK && status != http.StatusServiceUnavailable {
					f.w.t.Errorf("A reads %s: %d %s", path, status, body)
				}
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// work does B's and an operator's work, one request after the other. Each has to be answered, except for a tenth: on a busy machine a
// session may open too late for a read, or a confirmation of the cache come too late for a check.
func (f *fairness) work(name string, rounds int) {
	f.w.t.Helper()
	took, refused := map[string][]time.Duration{}, 0
	ask := func(what, key, method, path string, in any) {
		start := time.Now()
		status, body, err := f.w.call(f.w.t.Context(), key, method, f.at.url()+path, in)
		if status == http.StatusServiceUnavailable {
			refused++
		} else if err != nil || status/100 != 2 {
			f.w.t.Errorf("%s, %s: %d %v %s", name, what, status, err, body)
		}
		took[what] = append(took[what], time.Since(start))
	}
	check := "/api/v1/entitlements/" + features()[0] + "/check"
	for range rounds {
		f.n++
		ask("ingest", f.b.key, http.MethodPost, "/api/v1/usage/events", object{"events": events(fmt.Sprint("b", f.n), 1, features()[0])})
		ask("figures", f.b.key, http.MethodGet, "/api/v1/usage/aggregates", nil)
		ask("check", f.b.key, http.MethodGet, check, nil) // B's event made the cached entry old
		ask("identity", f.w.operator, http.MethodGet, "/api/v1/system/identity", nil)
	}
	for _, x := range f.w.createTenants(f.at, 3) { // a tenant's first check is not cached
		ask("first check", x.key, http.MethodGet, check, nil)
	}
	if refused*10 > 4*rounds {
		f.w.t.Errorf("%s: %d of %d requests are refused", name, refused, 4*rounds)
	}
	for what, list := range took {
		slices.Sort(list)
		f.w.t.Logf("%s, %s: p50 %s, p99 %s of %d", name, what, list[len(list)/2], list[len(list)*99/100], len(list))
	}
}
