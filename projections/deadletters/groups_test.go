package deadletters_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/deadletters"
	. "github.com/meterplex/meterplex/projections/projectionstest"
	"github.com/meterplex/meterplex/projections/query"
)

// Pages of groups list each group once, also groups with the same number of dead letters.
func TestPagesOfGroupsAreComplete(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	for feature, letters := range map[string]int{"a": 2, "b": 1, "c": 2, "d": 1, "e": 2} {
		for i := range letters {
			s.Append(Usage(tenant, fmt.Sprint(feature, i), feature, 1, May))
		}
	}
	s.Settle()
	for _, limit := range []int{1, 2, 3, 10} {
		var got []string
		q := deadletters.DeadLetterQuery{Limit: limit}
		for more := true; more; more = q.After != "" {
			page, err := s.Reads.DeadLetterGroups(t.Context(), q)
			s.Must(err)
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

func TestFingerprintsNameCauses(t *testing.T) {
	s := NewPipeline(t)
	print := func(of [5]string) (hex string) {
		s.Must(s.Pool.QueryRow(t.Context(), `SELECT dead_letter_fingerprint($1, $2, nullif($3, ''), $4, $5)`, of[0], of[1], of[2], of[3], of[4]).Scan(&hex))
		return hex
	}
	reason := func(text string) [5]string { return [5]string{"VALIDATION", "c", "", "calls", text} }
	for _, same := range [][2]string{
		{`Feature "a" not found`, `feature "b\"c" not found`},
		{`tenant 01a1fcd4-14b6-7a03-8704-d3e8123514eb is away`, `tenant 01a1fcd4-14b6-7a03-8704-d3e8123514ec is away`},
		{`position 17-4711 of 9`, `position 3-12 of 10`},
		{`at 0x1f4a0b`, `at 0x00`}, {`hash 9f86d081`, `hash 60303ae2`},
		{`the tenant's plan 'pro'`, `the tenant's plan 'basic'`}, {"key `a`", "key `b`"}, {`took 1.5s`, `took 20.25s`},
	} {
		if a, b := print(reason(same[0])), print(reason(same[1])); a != b {
			t.Errorf("%q and %q are of one cause", same[0], same[1])
		}
	}
	base := reason("r")
	seen := map[string][5]string{}
	for i := range base {
		of := base
		of[i] += "x"
		seen[print(of)] = of
	}
	for _, other := range [][5]string{base, {"VALIDATION", "c", "c", "alls", "r"}, {"VALIDATION", "c", "calls", "", "r"}, reason(`no "x" here`), reason(`no "x" there`), reason("the tenant's 'x' isn't"), reason("the tenant's 'x' is")} {
		if first, ok := seen[print(other)]; ok {
			t.Errorf("%q and %q are of two causes", first, other)
		}
		seen[print(other)] = other
	}
	for hex := range seen {
		if len(hex) != 32 {
			t.Errorf("%q", hex)
		}
	}
}

// Groups and bulks read the same rows as lists: a tenant's own generation if it has one.
func TestGroupsAreOfTheLiveGenerations(t *testing.T) {
	s := NewPipeline(t)
	tenants := []uuid.UUID{NewID(), NewID()}
	for i := range 6 {
		s.Append(Usage(tenants[i%2], fmt.Sprint(i), "calls", 1, May))
	}
	s.Settle()
	s.Must(Second(s.Pool.Exec(t.Context(), `INSERT INTO projection_pointers (projection, tenant_id, generation, flip) VALUES ('dead_letter_events', $1, 2, 2)`, tenants[0])))
	s.Must(Second(s.Pool.Exec(t.Context(), `INSERT INTO dead_letter_events SELECT 2, id, partition, tenant_id, stage, status, 'fixed', reason, details, producer_event_id, feature,
		source_position, topic, kafka_partition, kafka_offset, payload, retry_count, first_failed_at, last_failed_at FROM dead_letter_events WHERE tenant_id = $1`, tenants[0])))
	page, err := s.Reads.DeadLetterGroups(t.Context(), deadletters.DeadLetterQuery{Limit: 10})
	s.Must(err)
	if len(page.Data) != 2 || page.Data[0].Count != 3 || page.Data[1].Count != 3 || page.Data[0].Tenants != 1 || page.Data[0].Code == page.Data[1].Code {
		t.Errorf("%+v", page.Data)
	}
	for code, want := range map[string]int{"": 6, "fixed": 3, "no_active_subscription": 3} {
		if refs, err := s.Reads.FindDeadLetters(t.Context(), &events.DeadLetterFilter{Reason: code, Stage: events.StageValidation}, 100); err != nil || len(refs) != want {
			t.Errorf("%q: %d of %d %v", code, len(refs), want, err)
		}
	}
	RefusedAs(t, query.ErrCursorInvalid, Second(s.Reads.DeadLetterGroups(t.Context(), deadletters.DeadLetterQuery{After: "x"})))
}
