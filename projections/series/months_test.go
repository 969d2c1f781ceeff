package series_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/internal/tier"
	. "github.com/meterplex/meterplex/projections/projectionstest"
	"github.com/meterplex/meterplex/projections/series"
)

// writeGroups writes hours of $3 groups in each of $4 hours from a time on: of the key region, of region and model, and
// of no key.
const writeGroups = `
INSERT INTO usage_series (generation, partition, tenant_id, feature, hour, group_values, amount, event_count)
SELECT 1, 0, $1, 'calls', $2::timestamptz + h * interval '1 hour', g.group_values, CASE n WHEN 0 THEN 0 ELSE n * 1000 + h END, least(n, 1)
FROM generate_series(0, $4::int - 1) h, (
  SELECT n, format('{"region":"v%s"}', lpad(n::text, 4, '0')) AS group_values FROM generate_series(1, $3::int) n
  UNION ALL SELECT 5, '{}' UNION ALL SELECT 7, '{"region":null}' UNION ALL SELECT 11, '{"region":"other"}'
  UNION ALL SELECT 13, '{"model":"m","region":"v0001"}' UNION ALL SELECT 17, '{"model":null,"region":"<\"é"}' UNION ALL SELECT 0, '{"model":"zero"}') g (n, group_values)`

// monthsInOne reads the entries of months by one statement over all hours.
const monthsInOne = `
SELECT month, a, b, amount::text, events FROM (
  SELECT to_char(date_trunc('month', hour AT TIME ZONE 'UTC'), 'YYYY-MM') AS month, group_values::json ->> $2 AS a, group_values::json ->> $3 AS b, sum(amount) AS amount, sum(event_count) AS events
  FROM usage_series WHERE tenant_id = $1 GROUP BY 1, 2, 3 HAVING sum(event_count) <> 0) s
ORDER BY month, a COLLATE "C" NULLS LAST, b COLLATE "C" NULLS LAST`

// checkMonths compares the pages of months with the sums of all hours.
func checkMonths(s *Sized, tenant uuid.UUID, limit int, by ...string) {
	s.Helper()
	keys := append(append([]string{}, by...), "")
	rows, err := s.Pool.Query(s.Context(), monthsInOne, tenant, keys[0], keys[1])
	s.Must(err)
	var want, got []string
	for rows.Next() {
		var month, amount string
		var a, b *string
		var count int64
		s.Must(rows.Scan(&month, &a, &b, &amount, &count))
		group := map[string]*string{by[0]: a}
		if len(by) > 1 {
			group[by[1]] = b
		}
		text, _ := json.Marshal(group)
		want = append(want, fmt.Sprint(month, " ", string(text), " ", amount, " ", count))
	}
	s.Must(rows.Err())
	q := series.Query{TenantID: tenant, Feature: "calls", From: May, To: May.AddDate(20, 0, 0), Granularity: series.Month, GroupBy: by, Limit: limit}
	for _, b := range allBuckets(s.Pipeline, q) {
		text, _ := json.Marshal(b.Group)
		got = append(got, fmt.Sprint(b.Start.Format("2006-01"), " ", string(text), " ", b.Amount, " ", b.EventCount))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || len(want) < 2 {
		s.Errorf("by %s, %d a page:\ngot  %q\nwant %q", by, limit, got, want)
	}
}

// A page of months reads the hours of its groups, and not those of the others, however many there are.
func TestPagesOfMonthsReadTheirGroupsOnly(t *testing.T) {
	tier.AtSize(t)
	s := NewSized(t)
	declare(s.Pipeline.Database, "calls", time.Time{}, "region", "model")
	const groups, hours, limit = 60, 31 * 24, 5
	s.Must(Second(s.Pool.Exec(context.Background(), writeGroups, s.Tenant, May, groups, hours)))
	s.EndSessions()
	for who, viewer := range s.Viewers() { // without statistics of the table
		q := series.Query{TenantID: s.Tenant, Feature: "calls", From: May, To: May.AddDate(20, 0, 0), Granularity: series.Month, GroupBy: []string{"region"}, Limit: limit}
		for page := range 3 {
			// The hours of leastSummed groups, each in the index and in the table; then the list of groups.
			s.AtMost(2*16*hours+10*groups, fmt.Sprintf("page %d of a %s", page, who), func() {
				got, err := s.Reads.Read(t.Context(), viewer, q)
				if err != nil || len(got.Data) != limit {
					t.Fatalf("%d entries, %v", len(got.Data), err)
				}
				q.After = got.Next
			})
		}
	}
}

// All pages of months together are the sums of all hours, by one key and by two, also of a feature with more groups
// than a page lists.
func TestMonthsAreTheSumsOfTheirHours(t *testing.T) {
	s := NewSized(t)
	declare(s.Pipeline.Database, "calls", time.Time{}, "region", "model")
	few, many := NewID(), NewID()
	for _, w := range []struct {
		tenant        uuid.UUID
		at            time.Time
		groups, hours int
	}{{few, May.Add(740 * time.Hour), 30, 10}, {few, May.AddDate(0, 8, 3), 9, 5}, {few, May.AddDate(0, 9, 0).Add(-time.Hour), 12, 2}, {many, May, 2100, 2}} {
		s.Must(Second(s.Pool.Exec(context.Background(), writeGroups, w.tenant, w.at, w.groups, w.hours)))
	}
	for _, by := range [][]string{{"region"}, {"model"}, {"region", "model"}, {"model", "region"}} {
		for _, limit := range []int{1, 7, 1000} {
			checkMonths(s, few, limit, by...)
		}
		checkMonths(s, many, 1000, by...)
	}
}
