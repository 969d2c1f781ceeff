package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/must"
)

// A tenant's client sends one batch after the other through two instances, of which one is killed.
// The log, the topics and the verdicts have the events in that order.
func TestP10_OrderPerTenant(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	a, b := w.serve(""), w.serve("")
	w.catalogue(a)
	tenants := w.createTenants(a, 4)
	awaitKeys(w, b, tenants)
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
				for _, v := range c.send(t.Context(), events(fmt.Sprintf("%03d", k), 10, "api_calls")) {
					if n := numberOf(v.Position); n <= last {
						t.Errorf("tenant %s: %s is at %s, not above %d", x.id, v.EventID, v.Position, last)
					}
					last = numberOf(v.Position)
				}
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
		found, err := w.sql.Query(t.Context(),
			`SELECT l.payload ->> 'eventId' FROM event_log_rows l WHERE tenant_id = $1 AND subject = 2 ORDER BY position`, x.id)
		must.OK(t, err)
		ids, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil || len(ids) != 400 || !slices.IsSorted(ids) {
			t.Errorf("tenant %s: %d verdicts, want 400; in the order of the events: %v; %v", x.id, len(ids), slices.IsSorted(ids), err)
		}
	}
}
