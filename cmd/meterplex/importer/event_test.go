package importer

import (
	"slices"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// TestEventIDs: ids follow from the values and from their occurrence, or from the id of the row.
func TestEventIDs(t *testing.T) {
	row := func(n int64, tokens int64) *usageRow {
		return &usageRow{
			number: n, at: time.Date(2023, 11, 16, 18, 17, 3, 979960000, time.UTC),
			amounts: []amount{{feature: "input_tokens", n: tokens}}, metadata: map[string]string{"region": "eu"},
		}
	}
	idsOf := func(ids eventIDs, tenant string, rows ...*usageRow) (all []string) {
		ids.seen = map[[16]byte]uint32{}
		for _, r := range rows {
			id, err := ids.of(r, r.amounts[0], tenant)
			must.OK(t, err)
			all = append(all, id)
		}
		return all
	}
	// Frozen: different ids would count every earlier import again.
	plain := idsOf(eventIDs{}, "", row(1, 4808), row(2, 4808), row(3, 5))
	if !slices.Equal(plain, []string{"38d7095481235ff1ba3fceae63770f91", "49e120da7e0fa56ffc56ea940301d6e6",
		"de516d40b8b95940cce16ea5f2933ec9"}) {
		t.Errorf("by values: %q", plain)
	}
	if got := idsOf(eventIDs{}, "t1", row(1, 5), row(2, 4808), row(3, 4808)); !slices.Equal(got, []string{plain[2], plain[0], plain[1]}) {
		t.Errorf("in another order, of a tenant: %s", got)
	}
	again := idsOf(eventIDs{again: "second"}, "", row(1, 4808), row(2, 4808), row(3, 5))
	if len(slices.Compact(slices.Sorted(slices.Values(append(again, plain...))))) != 6 {
		t.Errorf("again: %s", again)
	}
	named := row(1, 4808)
	named.id = "req-1"
	if got := idsOf(eventIDs{}, "", named); got[0] != "req-1/input_tokens" {
		t.Errorf("by id: %s", got)
	}
	if got := idsOf(eventIDs{again: "second"}, "", named); got[0] != "req-1/input_tokens/16367aac" {
		t.Errorf("by id, again: %s", got)
	}
	for in, want := range map[string]string{"req-1": "req-1", "a b": "a%20b", "a%20b": "a%2520b", "ü": "%C3%BC", "": ""} {
		if got, err := readID(in); got != want || (err == nil) != (in != "") {
			t.Errorf("%q is %q, %v", in, got, err)
		}
	}
}
