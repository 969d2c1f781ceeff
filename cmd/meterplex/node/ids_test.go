package node

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestIDs: ids are UUIDs of version 7 that contain their time and are ordered by it.
func TestIDs(t *testing.T) {
	seen := map[uuid.UUID]bool{}
	last := uuid.Nil
	for range 20_000 {
		before := time.Now().Truncate(time.Millisecond)
		id := newID()
		sec, nsec := id.Time().UnixTime()
		at := time.Unix(sec, nsec)
		if id.Version() != 7 || id.Variant() != uuid.RFC4122 || seen[id] || at.Before(before) || at.After(time.Now()) {
			t.Fatalf("%s: version %d, %s, at %s", id, id.Version(), id.Variant(), at)
		}
		seen[id] = true
		if len(seen)%1000 == 0 { // ids of the same instant have no order
			time.Sleep(time.Microsecond)
			if next := newID(); next.String() <= last.String() {
				t.Fatalf("%s is not after %s", next, last)
			}
			last = newID()
		}
	}
}
