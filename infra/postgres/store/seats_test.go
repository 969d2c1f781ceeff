package store

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// Changes of the catalogue wait for each other at a head; they may not take the
// connections that events need.
func TestChangesThatWaitLeaveEventsTheirConnections(t *testing.T) {
	s, l, pool, _ := openStore(t)
	let := holdHead(t, pool, 0)
	var tenant uuid.UUID
	for tenant == uuid.Nil || events.PartitionOf(tenant) == 0 {
		tenant = uuid.New()
	}
	var all sync.WaitGroup
	var refused, began atomic.Int64
	for range pool.Config().MaxConns + 8 {
		all.Go(func() {
			began.Add(1)
			err := s.Change(context.Background(), events.Platform, func(commands.Tx) error { return errors.New("nothing to change") })
			if isOverloaded(err) {
				refused.Add(1)
			}
		})
	}
	must.Until(t, "the changes wait", func() bool { return int(pool.Stat().AcquiredConns()) == maxChanges })
	if got := submit(t, l, tenant, usageEvent(tenant, "a", 1)); got[0].Status != metering.Appended {
		t.Errorf("%v", got[0].Status)
	}
	if n := pool.Stat().AcquiredConns(); n > maxChanges {
		t.Errorf("%d connections are in use", n)
	}
	must.Until(t, "those without a seat are refused", func() bool {
		return refused.Load() >= int64(pool.Config().MaxConns)+8-2*(maxChanges-1)
	})
	let()
	all.Wait()
	if err := s.Change(t.Context(), events.Platform, func(commands.Tx) error { return nil }); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Each unknown key of a client that guesses keys is looked up.
func TestUnknownKeysLeaveEventsTheirConnections(t *testing.T) {
	s, l, pool, _ := openStore(t)
	tx, err := pool.Begin(t.Context())
	must.OK(t, err)
	let := sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(let)
	must.Exec(t, tx, `SET LOCAL idle_in_transaction_session_timeout = 0`)
	if _, err := tx.Exec(t.Context(), `LOCK TABLE api_keys`); err != nil { // looks at keys take long
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var refused atomic.Int64
	callers := 2 * int64(pool.Config().MaxConns)
	for n := range callers {
		all.Go(func() {
			if _, _, _, err := s.Keys.Find(context.Background(), [32]byte{byte(n)}); isOverloaded(err) {
				refused.Add(1)
			}
		})
	}
	must.Until(t, "the looks wait", func() bool { return int(pool.Stat().AcquiredConns()) == maxLoads+1 })
	tenant := uuid.New()
	if got := submit(t, l, tenant, usageEvent(tenant, "a", 1)); got[0].Status != metering.Appended {
		t.Errorf("%v", got[0].Status)
	}
	must.Until(t, "those without a seat are refused", func() bool { return refused.Load() >= callers-2*maxLoads })
	let()
	all.Wait()
	if _, _, _, err := s.Keys.Find(t.Context(), [32]byte{255}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestAReaderWithoutAConnectionIsRefusedSoon(t *testing.T) {
	_, _, pool, _ := openStore(t)
	catalogue := &Catalogue{Pool: pool}
	var held []*pgxpool.Conn
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(t.Context())
		must.OK(t, err)
		held = append(held, conn)
	}
	if _, err := catalogue.Features(t.Context(), commands.Page{Limit: 1}); !isOverloaded(err) {
		t.Errorf("%v", err)
	}
	if _, err := catalogue.Feature(t.Context(), "x"); !isOverloaded(err) {
		t.Errorf("%v", err)
	}
	for _, conn := range held {
		conn.Release()
	}
	if _, err := catalogue.Features(t.Context(), commands.Page{Limit: 1}); err != nil {
		t.Errorf("%v", err)
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are held", n)
	}
}

// keyTenant is the key of a context for the tenant whose key makes a change.
type keyTenant struct{}

// Changes by keys of tenants wait for a head, 30 of each tenant at a time, and again after they are refused. One tenant holds one seat, all
// tenants together leave one to operators, and no seat is left behind.
func TestP9_ChangesByKeysOfTenantsLeaveASeatToOperators(t *testing.T) {
	for name, c := range map[string]struct{ tenants, seats int }{"one tenant": {1, 1}, "five tenants": {5, maxChanges - 1}} {
		t.Run(name, func(t *testing.T) {
			_, l, pool, _ := openStore(t)
			s := New(pool, l, Config{Admission: func(ctx context.Context) commands.Admission {
				id, _ := ctx.Value(keyTenant{}).(uuid.UUID)
				return commands.Admission{TenantID: id}
			}})
			const partition = 7
			let := holdHead(t, pool, partition)
			var all sync.WaitGroup
			var stopped atomic.Bool
			var refused atomic.Int64
			for range c.tenants {
				tenant := uuid.New()
				for events.PartitionOf(tenant) != partition {
					tenant = uuid.New()
				}
				ctx := context.WithValue(context.Background(), keyTenant{}, tenant)
				for range 30 {
					all.Go(func() {
						for !stopped.Load() {
							if err := s.Change(ctx, tenant, func(commands.Tx) error { return nil }); isOverloaded(err) {
								refused.Add(1)
							}
						}
					})
				}
			}
			must.Until(t, "the changes wait", func() bool { return s.changes.Held() == c.seats })
			must.Until(t, "those without a seat are refused", func() bool { return refused.Load() > 30 })
			for n := range 20 {
				if err := s.Change(t.Context(), events.Platform, func(commands.Tx) error { return nil }); err != nil {
					t.Errorf("change %d of an operator: %v", n, err)
				}
				if n := s.changes.Held(); n > c.seats {
					t.Errorf("%d tenants hold %d seats", c.tenants, n)
				}
			}
			stopped.Store(true)
			let()
			all.Wait()
			if n := s.changes.InUse(); n != 0 {
				t.Errorf("%d changes are left", n)
			}
		})
	}
}
