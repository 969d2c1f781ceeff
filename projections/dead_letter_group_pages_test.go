package projections_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/meterplex/meterplex/projections/deadletters"
)

// Pages of groups list each group once, also groups with the same number of dead letters.
func TestPagesOfGroupsAreComplete(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	for feature, letters := range map[string]int{"a": 2, "b": 1, "c": 2, "d": 1, "e": 2} {
		for i := range letters {
			s.append(usageEvent(tenant, fmt.Sprint(feature, i), feature, 1, may))
		}
	}
	s.settle()
	for _, limit := range []int{1, 2, 3, 10} {
		var got []string
		q := deadletters.DeadLetterQuery{Limit: limit}
		for more := true; more; more = q.After != "" {
			page, err := s.reads.DeadLetterGroups(t.Context(), q)
			s.must(err)
			for _, g := range page.Data {
				got = append(got, fmt.Sprint(g.Feature, g.Count))
			}
			q.After = page.Next
		}
		if slices.Sort(got); !slices.Equal(got, []string{"a2", "b1", "c2", "d1", "e2"}) {
			t.Errorf("groups in pages of %d: %v", limit, got)
		}
	}
}
