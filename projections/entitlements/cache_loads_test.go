package entitlements

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/projections/query"
)

// Another database at the same address may hold other events at the same positions:
// entries cached under the previous one's mark count as changed.
func TestAnotherStartOfTheServerChangesEveryMark(t *testing.T) {
	c := NewCache(nil, nil)
	p := &c.partitions[3]
	kept := func() bool { return len(p.kept) == 1 }
	look := func(second int64, folded int64) int64 {
		p.kept[uuid.Max] = &granted{stands: query.Standing{Folded: folded}}
		c.apply(
			t.Context(),
			[]grantStep{{partition: 3, folded: folded, catalogue: 101, complete: true}},
			grantServer{started: time.Unix(second, 0)},
			1,
		)
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
