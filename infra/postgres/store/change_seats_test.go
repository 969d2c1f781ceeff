package store

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
)

// keyTenant is the key of a context for the tenant whose key makes a change.
type keyTenant struct{}

// Changes by keys of tenants wait for a head, 30 of each tenant at a time, and again after they are refused. One tenant holds one seat, all tenants together leave one to
// operators, and no seat and no tenant is left behind.
func TestP9_ChangesByKeysOfTenantsLeaveASeatToOperators(t *testing.T) {
	for name, c := range map[string]struct{ tenants, seats int }{"one tenant": {1, 1}, "five tenants": {5, maxChanges - 1}} {
		t.Run(name, func(t *testing.T) {
			_, l, pool, _ := openStore(t)
			s := New(pool, l, Config{KeyTenant: func(ctx context.Context) uuid.UUID {
				id, _ := ctx.Value(keyTenant{}).(uuid.UUID)
				return id
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
			until(t, "the changes wait", func() bool { return len(s.changes.all) == c.seats })
			until(t, "those without a seat are refused", func() bool { return refused.Load() > 30 })
			for n := range 20 {
				if err := s.Change(t.Context(), events.Platform, func(commands.Tx) error { return nil }); err != nil {
					t.Errorf("change %d of an operator: %v", n, err)
				}
				if n := len(s.changes.all); n > c.seats {
					t.Errorf("%d tenants hold %d seats", c.tenants, n)
				}
			}
			stopped.Store(true)
			let()
			all.Wait()
			if n := len(s.changes.all) + len(s.changes.tenants) + len(s.changes.own); n != 0 {
				t.Errorf("%d seats and tenants are left", n)
			}
		})
	}
}
