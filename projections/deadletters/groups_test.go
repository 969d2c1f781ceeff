package deadletters_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/deadletters"
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
		q := deadletters.Query{Limit: limit}
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
		s.Must(s.Pool.QueryRow(t.Context(), `SELECT dead_letter_fingerprint($1, $2, nullif($3, ''), $4, $5)`, of[0], of[1], of[2], of[3],
			of[4]).Scan(&hex))
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
	for _, other := range [][5]string{base, {"VALIDATION", "c", "c", "alls", "r"}, {"VALIDATION", "c", "calls", "", "r"},
		reason(`no "x" here`), reason(`no "x" there`), reason("the tenant's 'x' isn't"), reason("the tenant's 'x' is")} {
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
	s.Must(Second(s.Pool.Exec(t.Context(), `INSERT INTO projection_pointers (projection, tenant_id, generation, flip)
		VALUES ('dead_letter_events', $1, 2, 2)`, tenants[0])))
	s.Must(Second(s.Pool.Exec(t.Context(), `INSERT INTO dead_letter_events SELECT 2, id, partition, tenant_id, stage, status, 'fixed',
		reason, details, producer_event_id, feature,
		source_position, topic, kafka_partition, kafka_offset, payload, retry_count, first_failed_at, last_failed_at FROM dead_letter_events
		WHERE tenant_id = $1`, tenants[0])))
	page, err := s.Reads.DeadLetterGroups(t.Context(), deadletters.Query{Limit: 10})
	s.Must(err)
	if len(page.Data) != 2 || page.Data[0].Count != 3 || page.Data[1].Count != 3 || page.Data[0].Tenants != 1 ||
		page.Data[0].Code == page.Data[1].Code {
		t.Errorf("%+v", page.Data)
	}
	for code, want := range map[string]int{"": 6, "fixed": 3, "no_active_subscription": 3} {
		if refs, err := s.Reads.FindDeadLetters(t.Context(), &events.DeadLetterFilter{Reason: code, Stage: events.StageValidation},
			100); err != nil || len(refs) != want {
			t.Errorf("%q: %d of %d %v", code, len(refs), want, err)
		}
	}
	RefusedAs(t, query.ErrCursorInvalid, Second(s.Reads.DeadLetterGroups(t.Context(), deadletters.Query{After: "x"})))
}

// Statements that write dead letters by their values, in the form of the fold's.
const (
	writeLetters = `
INSERT INTO dead_letter_events AS d (generation, id, partition, tenant_id, stage, status, code, reason, details, producer_event_id,
feature, source_position, topic, retry_count, first_failed_at, last_failed_at)
SELECT n.generation, n.id, 0, n.tenant_id, 'VALIDATION', n.status, n.code, n.reason,
CASE n.code WHEN 'fold_failed' THEN '{"consumer":"c"}'::json END, 'e', n.feature, 1, n.topic, 0, n.first_failed_at, n.last_failed_at
FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::timestamptz[],
$10::timestamptz[])
  n (generation, id, tenant_id, status, code, reason, feature, topic, first_failed_at, last_failed_at)
ON CONFLICT (generation, id) DO UPDATE SET status = excluded.status, code = excluded.code, reason = excluded.reason,
details = excluded.details, feature = excluded.feature,
  topic = excluded.topic, last_failed_at = excluded.last_failed_at`
	deleteLetters = `DELETE FROM dead_letter_events WHERE id = ANY ($1)`
	// differentCounts are the rows of dead_letter_counts that the dead letters do not give, and those that are missing.
	differentCounts = `
WITH letters AS (
  SELECT d.generation, s.slot, d.tenant_id, d.fingerprint, d.topic, count(*) FILTER (WHERE d.status = 'FAILED') AS failed,
  count(*) FILTER (WHERE d.status = 'RETRYING') AS retrying,
         count(*) FILTER (WHERE d.status = 'RESOLVED') AS resolved, count(*) FILTER (WHERE d.status = 'DISCARDED') AS discarded
  FROM dead_letter_events d CROSS JOIN LATERAL (VALUES (-1), (floor(extract(epoch FROM d.first_failed_at) / 300)::bigint)) s (slot)
  GROUP BY d.generation, s.slot, d.tenant_id, d.fingerprint, d.topic),
counts AS (SELECT generation, slot, tenant_id, fingerprint, topic, failed, retrying, resolved, discarded FROM dead_letter_counts
WHERE (failed, retrying, resolved, discarded) <> (0, 0, 0, 0))
SELECT count(*) FROM ((TABLE letters EXCEPT ALL TABLE counts) UNION ALL (TABLE counts EXCEPT ALL TABLE letters)) d`
)

func countsThatDiffer(s *Pipeline) (n int) {
	s.Helper()
	s.Must(s.Pool.QueryRow(s.Context(), differentCounts).Scan(&n))
	return n
}

// countedLetters are dead letters in memory, column by column, for writeLetters.
type countedLetters struct {
	generations                             []int
	ids, tenants                            []uuid.UUID
	statuses, codes, reasons, features, top []string
	first, last                             []time.Time
}

// drawLetters draws dead letters: new ones, and changes of known ones, which keep tenant and time of the first failure.
func drawLetters(rt *rapid.T, known map[uuid.UUID]time.Time, tenants []uuid.UUID, of map[uuid.UUID]uuid.UUID) (c countedLetters) {
	pick := func(name string, from ...string) string { return rapid.SampledFrom(from).Draw(rt, name) }
	ids := slices.SortedFunc(maps.Keys(known), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	for range rapid.IntRange(1, 12).Draw(rt, "letters") {
		id := NewID()
		if len(ids) > 0 && rapid.IntRange(0, 2).Draw(rt, "known") > 0 {
			id = rapid.SampledFrom(ids).Draw(rt, "id")
		} else {
			known[id], of[id] = drawTime(rt, "first"), rapid.SampledFrom(tenants).Draw(rt, "tenant")
		}
		for _, generation := range []int{1, 2} {
			if c.has(generation, id) {
				continue
			}
			c.generations, c.ids, c.tenants = append(c.generations, generation), append(c.ids, id), append(c.tenants, of[id])
			c.statuses = append(c.statuses, pick("status", events.StatusFailed, events.StatusRetrying, events.StatusResolved,
				events.StatusDiscarded))
			c.codes, c.reasons = append(c.codes, pick("code", "not_entitled", "fold_failed")),
				append(c.reasons, pick("reason", "no x", "no y", `no "x"`, `no "y"`))
			c.features, c.top = append(c.features, pick("feature", "calls", "storage")),
				append(c.top, pick("topic", "usage.raw", "usage.raw", "usage.validated"))
			c.first, c.last = append(c.first, known[id]),
				append(c.last, known[id].Add(time.Duration(rapid.IntRange(0, 1000).Draw(rt, "later"))*time.Second))
		}
	}
	return c
}

func (c *countedLetters) has(generation int, id uuid.UUID) bool {
	for i := range c.ids {
		if c.ids[i] == id && c.generations[i] == generation {
			return true
		}
	}
	return false
}

func (c *countedLetters) args() []any {
	return []any{c.generations, c.ids, c.tenants, c.statuses, c.codes, c.reasons, c.features, c.top, c.first, c.last}
}

// drawTime draws a time near the edges of slots of five minutes.
func drawTime(rt *rapid.T, name string) time.Time {
	return May.Add(5*time.Minute*time.Duration(rapid.IntRange(0, 3).Draw(rt, name)) +
		rapid.SampledFrom([]time.Duration{0, time.Microsecond, time.Second, 3 * time.Minute, 5*time.Minute - time.Microsecond}).Draw(rt,
			name+" behind"))
}

// countedFilter draws a filter of groups without tenants and ids.
func countedFilter(rt *rapid.T) (f events.DeadLetterFilter) {
	either := func(name, value string) string {
		return rapid.SampledFrom([]string{"", "", "", value}).Draw(rt, name)
	}
	f.Status = rapid.SampledFrom([]string{"", events.StatusFailed, events.StatusRetrying, events.StatusResolved, events.StatusDiscarded}).
		Draw(rt, "of status")
	f.Stage, f.Reason, f.Feature = either("of stage", "VALIDATION"), either("of code", "fold_failed"), either("of feature", "calls")
	f.Consumer, f.Topic = either("of consumer", "c"), either("of topic", "usage.validated")
	if rapid.Bool().Draw(rt, "from") {
		at := drawTime(rt, "from")
		f.From = &at
	}
	if rapid.Bool().Draw(rt, "to") {
		at := drawTime(rt, "to")
		f.To = &at
	}
	return f
}

// TestP5_GroupsAreTheirDeadLetters: the groups that are read from the counts are those that the dead letters give, of every filter and
// page, whatever was written, changed and deleted. A filter by ids counts the dead letters themselves.
func TestP5_GroupsAreTheirDeadLetters(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := NewPipeline(t)
	tenants := []uuid.UUID{NewID(), NewID(), NewID()}
	s.Must(Second(s.Pool.Exec(t.Context(), `INSERT INTO projection_pointers (projection, tenant_id, generation, flip)
		VALUES ('dead_letter_events', $1, 2, 2)`, tenants[0])))
	rapid.Check(t, func(rt *rapid.T) {
		s.Must(Second(s.Pool.Exec(t.Context(), `DELETE FROM dead_letter_events`)))
		known, of := map[uuid.UUID]time.Time{}, map[uuid.UUID]uuid.UUID{}
		for range rapid.IntRange(1, 6).Draw(rt, "statements") {
			c := drawLetters(rt, known, tenants, of)
			s.Must(Second(s.Pool.Exec(t.Context(), writeLetters, c.args()...)))
			if rapid.IntRange(0, 3).Draw(rt, "delete") == 0 {
				s.Must(Second(s.Pool.Exec(t.Context(), deleteLetters, []uuid.UUID{c.ids[0]})))
				delete(known, c.ids[0])
			}
			if n := countsThatDiffer(s); n != 0 {
				rt.Fatalf("%d rows of the counts differ from the dead letters", n)
			}
		}
		ids := append([]uuid.UUID{}, slices.Collect(maps.Keys(known))...)
		for range 4 {
			f := countedFilter(rt)
			q := deadletters.Query{DeadLetterFilter: f, Limit: rapid.IntRange(1, 4).Draw(rt, "limit")}
			for pages := 0; ; pages++ {
				byLetters := q
				byLetters.IDs = ids
				got, err := s.Reads.DeadLetterGroups(t.Context(), q)
				s.Must(err)
				want, err := s.Reads.DeadLetterGroups(t.Context(), byLetters)
				s.Must(err)
				if !reflect.DeepEqual(got, want) {
					rt.Fatalf("the counts and the dead letters give other groups of %+v:\n%+v\n%+v", f, got, want)
				}
				if q.After = got.Next; q.After == "" || pages > 20 {
					break
				}
				if rapid.Bool().Draw(rt, "another fingerprint") {
					q.Fingerprint = got.Data[0].Fingerprint
				}
			}
		}
	})
}

// TestGroupsOfManyDeadLettersReadFewRows: a page of groups costs what it shows, however many dead letters there are.
func TestGroupsOfManyDeadLettersReadFewRows(t *testing.T) {
	tier.AtSize(t)
	s := NewSized(t)
	const letters = 20_000
	s.Must(Second(s.Pool.Exec(t.Context(), `
INSERT INTO dead_letter_events (generation, id, partition, tenant_id, stage, status, code, reason, producer_event_id, feature,
source_position, topic, retry_count, first_failed_at, last_failed_at)
SELECT 1, ('019ec0de-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 0, $1, 'VALIDATION',
CASE WHEN n <= $3::int / 10 THEN 'DISCARDED' ELSE 'FAILED' END, 'not_entitled', 'no "' || n || '"', 'e', 'calls', n, 'usage.raw', 0,
       $2::timestamptz + n * interval '1 second', $2::timestamptz + n * interval '1 second' FROM generate_series(1, $3::int) n`, s.Tenant,
		May, letters)))
	middle := May.Add(letters/2*time.Second + 7*time.Second)
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			owner, err := pgx.Connect(t.Context(), s.URL)
			s.Must(err)
			s.Must(Second(owner.Exec(t.Context(), `VACUUM (ANALYZE) dead_letter_events, dead_letter_counts`)))
			s.Must(owner.Close(t.Context()))
		}
		s.EndSessions()
		for of, want := range map[string]struct {
			f events.DeadLetterFilter
			n int64
		}{
			"all": {events.DeadLetterFilter{}, letters}, "DISCARDED": {events.DeadLetterFilter{Status: events.StatusDiscarded},
				letters / 10},
			"half of them": {events.DeadLetterFilter{From: &middle}, letters/2 - 6},
		} {
			s.AtMost(1500, fmt.Sprintf("a page of groups of %s, analyzed: %v,", of, analyzed), func() {
				page, err := s.Reads.DeadLetterGroups(t.Context(), deadletters.Query{DeadLetterFilter: want.f, Limit: 25})
				s.Must(err)
				if len(page.Data) != 1 || page.Data[0].Count != want.n || page.Data[0].Tenants != 1 {
					t.Errorf("%s: %s", of, fmt.Sprint(page.Data))
				}
			})
		}
	}
}
