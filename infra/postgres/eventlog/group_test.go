package eventlog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
)

func TestP4_ConflictWithinABatchComesBeforePolicy(t *testing.T) {
	l, _, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	only := func(s commands.Submitted) commands.Submitted { s.ProbeOnly = true; return s }
	got := submit(t, l, tenant, only(usageEvent(tenant, "a", 3)), usageEvent(tenant, "a", 1), only(usageEvent(tenant, "a", 2)), only(usageEvent(tenant, "a", 1)), only(usageEvent(tenant, "b", 1)))
	want := []commands.PlacementStatus{commands.Absent, commands.Appended, commands.Conflict, commands.Duplicate, commands.Absent}
	if !slices.Equal(statuses(got), want) {
		t.Errorf("%v, want %v", statuses(got), want)
	}
}

// The table that finds duplicates within a group behaves like a map from key to the
// first member, for any keys, tenants and sizes.
func TestP2_TheFirstOfEachKeyIsFound(t *testing.T) {
	tenants := []uuid.UUID{uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7()), uuid.Nil}
	var table firsts
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 300).Draw(t, "members")
		keys := rapid.IntRange(1, 400).Draw(t, "keys")
		table.reset(n)
		want := map[logKey]int{}
		var members []member
		for i := range n {
			p := usageEvent(rapid.SampledFrom(tenants).Draw(t, "tenant"), fmt.Sprint(rapid.IntRange(1, keys).Draw(t, "key")), 1)
			note := rapid.Bool().Draw(t, "note")
			first, known := want[keyOf(&p.Pending)]
			if !known {
				first = i
			}
			if !known && note {
				want[keyOf(&p.Pending)] = i
			}
			if got := table.of(members, &p.Pending, i, note); got != first {
				t.Fatalf("member %d of %v is said to be the key of member %d, not of %d", i, keyOf(&p.Pending), got, first)
			}
			members = append(members, member{submitted: &p, first: first})
		}
	})
}
