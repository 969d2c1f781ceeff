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
	// spared is the share of B's requests that may be refused, in percent: on a busy machine a
	// session may open too late for a read, or a confirmation of the cache come too late for a check.
	spared int
}

// One tenant reads on many connections, in each way that costs much. Everything that another tenant, and an
// operator, asks for meanwhile is answered.
func TestP9_OneTenantsReadsAreNotFeltByAnother(t *testing.T) {
	tier.AtSize(t)
	w := newDeployment(t)
	f := &fairness{w: w, at: w.serve("")}
	w.catalogue(f.at)
	tenants := w.createTenants(f.at, 2)
	f.a, f.b = tenants[0], tenants[1]
	rounds := f.fill()
	alone := f.work("alone", rounds)

	// Each of these lists waits for the lock until the service's lock_timeout refuses it, and its seat is
	// taken by the next one.
	block, err := w.sql.Begin(t.Context())
	must.OK(t, err)
	defer func() { _ = block.Rollback(context.Background()) }()
	if _, err := block.Exec(t.Context(), `LOCK TABLE dead_letter_events IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	stop := f.read(12, "/api/v1/usage/events?status=REJECTED")
	within(t, "a list of A hangs", func(ctx context.Context) (bool, string) {
		var n int
		err := w.sql.QueryRow(ctx, `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() AND NOT l.granted`).Scan(&n)
		return err == nil && n > 0, fmt.Sprint(n, " locks are waited for, ", err)
	})
	f.work("beside lists that hang", min(rounds, 20))
	stop()
	must.OK(t, block.Rollback(t.Context()))

	now := time.Now().UTC()
	figures := "/api/v1/usage/aggregates?asOf=" + now.Format(time.RFC3339)
	explained := "/api/v1/usage/aggregates/explain?feature=" + features()[0] + "&period=" + now.Format("2006-01")
	for name, reads := range map[string]func() (stop func()){
		"beside lists of rejected events":   func() func() { return f.read(12, "/api/v1/usage/events?status=REJECTED") },
		"beside figures of the past":        func() func() { return f.read(16, figures, explained) },
		"beside reads of the whole history": func() func() { return f.read(16, "/api/v1/usage/events", figures, explained) },
	} {
		stop := reads()
		beside := f.work(name, rounds)
		stop()
		for what, took := range beside {
			t.Logf("%s, %s: p50 %.1f times, p99 %.1f times that alone", name, what,
				ratio(took, alone[what], 50), ratio(took, alone[what], 99))
		}
	}
}

func ratio(a, b []time.Duration, percent int) float64 {
	return float64(a[len(a)*percent/100]) / float64(b[len(b)*percent/100])
}

// fill gives both tenants their events. It returns how often B works in a phase.
func (f *fairness) fill() (rounds int) {
	f.w.t.Helper()
	many, rounds := 20_000, 60
	f.spared = 10
	f.w.ingest(f.at, f.b, "accepted", events("first", 10, features()[0])...)
	for n := 0; n < many; n += 1000 {
		f.w.ingest(f.at, f.a, "accepted", events(fmt.Sprint("a", n), 1000, features()[0])...)
	}
	f.w.drain()
	return rounds
}

// read reads the paths in turn on n connections as A, until it is stopped. A may be refused.
func (f *fairness) read(n int, paths ...string) (stop func()) {
	ctx, cancel := context.WithCancel(f.w.t.Context())
	var all sync.WaitGroup
	var mu sync.Mutex
	answers := map[int]int{}
	for client := range n {
		all.Go(func() {
			for turn := client; ctx.Err() == nil; turn++ {
				status, body, err := f.w.call(ctx, f.a.key, http.MethodGet, f.at.url()+paths[turn%len(paths)], nil)
				if err == nil && status != http.StatusOK && status != http.StatusServiceUnavailable {
					f.w.t.Errorf("A reads %s: %d %s", paths[turn%len(paths)], status, body)
				}
				mu.Lock()
				answers[status]++
				mu.Unlock()
			}
		})
	}
	return sync.OnceFunc(func() { cancel(); all.Wait(); f.w.t.Logf("A's answers by status: %v", answers) })
}

// work does B's and an operator's work, one request after the other. Each has to be answered, except
// for a spared share.
func (f *fairness) work(name string, rounds int) map[string][]time.Duration {
	f.w.t.Helper()
	took, refused := map[string][]time.Duration{}, 0
	ask := func(what, key, method, path string, in any) {
		start := time.Now()
		status, body, err := f.w.call(f.w.t.Context(), key, method, f.at.url()+path, in)
		if status == http.StatusServiceUnavailable {
			refused++
			f.w.t.Logf("%s, %s: %s", name, what, body)
		} else if err != nil || status/100 != 2 {
			f.w.t.Errorf("%s, %s: %d %v %s", name, what, status, err, body)
		}
		took[what] = append(took[what], time.Since(start))
	}
	for range rounds {
		f.n++
		batch := events(fmt.Sprint("b", f.n), 1, features()[0])
		f.b.ledger.sending(batch)
		ask("ingest", f.b.key, http.MethodPost, "/api/v1/usage/events", map[string]any{"events": batch})
		ask("figures", f.b.key, http.MethodGet, "/api/v1/usage/aggregates", nil)
		ask("check", f.b.key, http.MethodGet, "/api/v1/entitlements/"+features()[0]+"/check", nil) // B's event made the cached entry old
		ask("identity", f.w.operator, http.MethodGet, "/api/v1/system/identity", nil)
	}
	for _, x := range f.w.createTenants(f.at, 3) { // a tenant's first check is not cached
		ask("first check", x.key, http.MethodGet, "/api/v1/entitlements/"+features()[0]+"/check", nil)
	}
	if refused*100 > f.spared*4*rounds {
		f.w.t.Errorf("%s: %d of %d requests are refused", name, refused, 4*rounds)
	}
	for what, list := range took {
		slices.Sort(list)
		f.w.t.Logf("%s, %s: p50 %s, p99 %s of %d", name, what, list[len(list)/2].Round(10*time.Microsecond), list[len(list)*99/100].Round(10*time.Microsecond), len(list))
	}
	return took
}
