package entitlements

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// Callers after a change of a tenant wait for no load that began before it; its result is cached only if it includes the change. The
// loads of other tenants stay as they are.
func TestCallersAfterAChangeJoinNoEarlierLoad(t *testing.T) {
	c, now := NewCache(nil, nil), time.Now()
	changed, other := uuid.UUID{1}, uuid.UUID{2}
	p := &c.partitions[events.PartitionOf(changed)]
	loads := map[uuid.UUID]*grantLoad{}
	for _, tenant := range []uuid.UUID{changed, other} {
		l := newGrantLoad(tenant, now)
		loads[tenant], p.loads[tenant], p.running[l] = l, l, struct{}{}
	}
	p.changed([]uuid.UUID{changed}, 7, 1)
	if p.loads[changed] != nil {
		t.Error("callers after the change wait for a load from before it")
	}
	if loads[changed].atLeast != 7 {
		t.Errorf("a load from before the change is cached from position %d on, want 7", loads[changed].atLeast)
	}
	if p.loads[other] != loads[other] || loads[other].atLeast != 0 {
		t.Error("the load of another tenant is left out")
	}
}
