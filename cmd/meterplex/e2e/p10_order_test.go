package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A tenant's client sends one batch after the other through two instances, of which one is killed.
// The log, the topics and the verdicts have the events in that order.
func TestP10_OrderPerTenant(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	a, b := w.serve(""), w.serve("")
	w.catalogue(a)
	tenants := w.createTenants(a, 4)
	w.awaitKeys(b, tenants)
	half, killed := new(sync.WaitGroup), make(chan struct{})
	half.Add(len(tenants))
	var wait sync.WaitGroup
	for n, x := range tenants {
		wait.Go(func() {
			urls := []func() string{a.url, b.url}
			turn := n
			c := &client{w: w, tenant: x, to: func() string {
				turn++
				return urls[turn%2]()
			}}
			last := int64(0)
			for k := range 40 {
				if k == 20 {
					half.Done()
					<-killed
				}
				last = ascending(t, x, last, c.send(t.Context(), events(fmt.Sprintf("%03d", k), 10, "api_calls")))
			}
		})
	}
	half.Wait()
	b.kill()
	close(killed)
	wait.Wait()
	b.start()
	w.finish()
	for _, x := range tenants {
		w.checkOrder(x)
	}
}

// ascending checks that positions ascend in the order of the events and returns the last.
func ascending(t *testing.T, x *tenant, last int64, verdicts []verdict) int64 {
	for _, v := range verdicts {
		_, number, _ := strings.Cut(v.Position, "-")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n <= last {
			t.Errorf("tenant %s: %s is at %s, not above %d", x.id, v.EventID, v.Position, last)
		}
		last = n
	}
	return last
}

// checkOrder checks that the verdicts have the order in which the client sent.
func (w *deployment) checkOrder(x *tenant) {
	w.t.Helper()
	found, err := w.sql.Query(w.t.Context(), `SELECT l.payload ->> 'eventId' FROM event_log_rows l WHERE tenant_id = $1 AND subject = 2 ORDER BY position`, x.id)
	if err != nil {
		w.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	if len(ids) != 400 || !slices.IsSorted(ids) {
		w.t.Errorf("tenant %s: %d verdicts, want 400; in order: %v", x.id, len(ids), slices.IsSorted(ids))
	}
}
