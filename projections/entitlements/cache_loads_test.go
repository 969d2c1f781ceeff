package entitlements

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
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

// Another database at the same address may hold other events at the same positions:
// entries cached under the previous one's mark count as changed.
func TestAnotherStartOfTheServerChangesEveryMark(t *testing.T) {
	c := NewCache(nil, nil)
	p := &c.partitions[3]
	kept := func() bool { return len(p.kept) == 1 }
	look := func(second int64, folded int64) int64 {
		p.kept[uuid.Max] = &granted{stands: query.Standing{Folded: folded}}
		c.apply(t.Context(), []grantStep{{partition: 3, folded: folded, catalogue: 101, told: true}}, grantServer{started: time.Unix(second, 0)}, 1)
		return c.feed.catalogue.Load().Mark(3)
	}
	first := look(1, 10)
	if again := look(1, 20); again != first || !kept() {
		t.Errorf("the same server: marks %d and %d, kept %t", first, again, kept())
	}
	if other := look(2, 30); other == first || c.feed.catalogue.Load().Position(3) != 101 || kept() {
		t.Errorf("another server: marks %d and %d, kept %t", first, other, kept())
	}
}

// Callers after a change of the catalogue do not wait for features that are read since before it, and these are not cached.
func TestFeaturesReadBeforeAChangeAreNotCached(t *testing.T) {
	for name, restarted := range map[string]bool{"a change of the catalogue": false, "another server": true} {
		c := NewCache(nil, nil)
		c.sawCatalogue(10, false)
		f := &c.feed.features
		before := &featureLoad{done: make(chan struct{})}
		f.load = before
		c.sawCatalogue(10, false)
		if f.load != before {
			t.Errorf("%s: a poll without a change ends a read of the features", name)
		}
		position := int64(11)
		if restarted {
			position = 10
		}
		c.sawCatalogue(position, restarted)
		if f.load == before || f.known != nil {
			t.Errorf("%s: later callers get the features that were read before it", name)
		}
	}
}
