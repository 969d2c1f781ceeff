package dedupe

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
)

// The table that finds duplicates within a group behaves like a map from key to the
// first event, for any keys, tenants and sizes.
func TestP2_TheFirstOfEachKeyIsFound(t *testing.T) {
	tenants := []uuid.UUID{uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7()), uuid.Nil}
	var table Firsts
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 300).Draw(t, "members")
		keys := rapid.IntRange(1, 400).Draw(t, "keys")
		table.Reset(n)
		want := map[Key]int{}
		var list []*events.Pending
		for i := range n {
			p := &events.Pending{TenantID: rapid.SampledFrom(tenants).Draw(t, "tenant"),
				DedupeKey: fmt.Sprint("u/", rapid.IntRange(1, keys).Draw(t, "key"))}
			note := rapid.Bool().Draw(t, "note")
			first, known := want[KeyOf(p)]
			if !known {
				first = i
			}
			if !known && note {
				want[KeyOf(p)] = i
			}
			if got := table.Of(list, p, i, note); got != first {
				t.Fatalf("event %d of %v is said to have the key of event %d, not of %d", i, KeyOf(p), got, first)
			}
			list = append(list, p)
		}
	})
}
