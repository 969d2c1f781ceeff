package series_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/series"
)

// Groups are those of the keys that the feature had when the usage was recorded.
func TestUsageIsGroupedByTheKeysOfItsFeature(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	declare(s.Database, "calls", time.Now().Add(-time.Hour), "region", "model")
	long, _ := json.Marshal(make([]byte, 100))
	for i, metadata := range []string{`{"region":"eu","model":"s"}`, `{"region":"eu","model":"l"}`, `{"region":"us","model":"s"}`,
		`{"model":"s"}`, `{}`, `{"region":7,"model":true}`,
		`{"region":{"a":1},"model":` + string(long) + `}`, `{"region":"a|b","model":"\"<"}`, `{"region":"eu","model":"s"}`} {
		s.Append(taggedUsage(tenant, fmt.Sprint(i), "calls", 1<<i, May.Add(time.Duration(i/8)*time.Hour), metadata))
	}
	s.Settle()
	q := series.Query{TenantID: tenant, Feature: "calls", From: May, To: May.AddDate(0, 0, 2), Granularity: series.Day, Limit: 1}
	for _, c := range []struct {
		by   []string
		want string
	}{
		{nil, "0501T00 511/9 "},
		{[]string{"region"},
			`0501T00 32/1{"region":"7"} 0501T00 128/1{"region":"a|b"} 0501T00 259/3{"region":"eu"} 0501T00 64/1{"region":"other"} 0501T00 ` +
				`4/1{"region":"us"} 0501T00 24/2{"region":null} `},
		{[]string{"model"},
			`0501T00 128/1{"model":"\"\u003c"} 0501T00 2/1{"model":"l"} 0501T00 64/1{"model":"other"} 0501T00 269/4{"model":"s"} 0501T00 ` +
				`32/1{"model":"true"} 0501T00 16/1{"model":null} `},
		{[]string{"model", "region"},
			`0501T00 128/1{"model":"\"\u003c","region":"a|b"} 0501T00 2/1{"model":"l","region":"eu"} 0501T00 64/1{"model":"other",` +
				`"region":"other"} ` +
				`0501T00 257/2{"model":"s","region":"eu"} 0501T00 4/1{"model":"s","region":"us"} 0501T00 8/1{"model":"s","region":null} 0501T00 ` +
				`32/1{"model":"true","region":"7"} 0501T00 16/1{"model":null,"region":null} `},
	} {
		q.GroupBy = c.by
		for _, limit := range []int{1, 3, 100} {
			if q.Limit = limit; described(allBuckets(s, q)) != c.want {
				t.Errorf("by %s, %d a page:\ngot  %s\nwant %s", c.by, limit, described(allBuckets(s, q)), c.want)
			}
		}
	}
	q.GroupBy = []string{"Region"}
	if _, err := s.Reads.Read(t.Context(), Operator, q); Refusal(err) != "parameter_invalid" {
		t.Errorf("an undeclared key: %v", err)
	}
	q.Feature = "call"
	if _, err := s.Reads.Read(t.Context(), Operator, q); Refusal(err) != "feature_not_found" {
		t.Errorf("an unknown feature: %v", err)
	}
}

// P12: a series is complete up to the events that were folded, and says no more while the projector lags.
func TestP12_ASeriesIsCompleteUpToWhatWasFolded(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	declare(s.Database, "calls", time.Time{})
	q := series.Query{TenantID: tenant, Feature: "calls", From: May, To: May.AddDate(0, 0, 1), Granularity: series.Day, Limit: 10}
	read := func() series.Page {
		t.Helper()
		page, err := s.Reads.Read(t.Context(), TenantViewer(tenant), q)
		s.Must(err)
		return page
	}
	if empty := read(); empty.CompleteUpTo != nil || empty.AsOf.Number != 0 || empty.Data[0].Amount != "0" {
		t.Errorf("an empty log: %+v", empty)
	}
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	first := s.Append(Usage(tenant, "a", "calls", 1, May))[0]
	s.Settle()
	before := read()
	recorded := func(position int64) (at time.Time) {
		s.Must(
			s.Pool.QueryRow(t.Context(), `SELECT recorded_at FROM event_log WHERE partition = $1 AND position = $2`, first.Partition,
				position).
				Scan(&at),
		)
		return at.UTC()
	}
	if before.AsOf.Number != s.Head(tenant).Number || !before.CompleteUpTo.Equal(recorded(before.AsOf.Number)) {
		t.Errorf("all is folded: %+v", before)
	}
	second := s.Append(Usage(tenant, "b", "calls", 2, May))[0]
	s.Drain(s.Validating, s.Aggregating, s.Lettering, s.Entitling) // and not the projector of the series
	after := read()
	if after.AsOf.Number >= second.Number || after.CompleteUpTo.After(recorded(second.Number-1)) || after.Data[0].Amount != "1" {
		t.Errorf(
			"the projector lags: %s after %s up to %s, complete up to %s",
			after.Data[0].Amount,
			before.AsOf,
			after.AsOf,
			after.CompleteUpTo,
		)
	}
	q.Wait = query.Wait{MinPosition: &second}
	if _, err := s.Reads.Read(t.Context(), Operator, q); err != query.ErrProjectionBehind {
		t.Errorf("a wait: %v", err)
	}
	s.Settle()
	if page := read(); page.Data[0].Amount != "3" || page.AsOf.Number < second.Number {
		t.Errorf("after the wait: %+v", page)
	}
}

// P5: pages of a list stay in the generation that it began in.
func TestP5_PagesOfASeriesStayInTheirGeneration(t *testing.T) {
	y := NewRebuilds(t)
	y.Folds.Series = y.Folds.Series.With(projections.ProjectionSeries+"/doubled", func(s *series.State, e *events.Envelope) error {
		return errors.Join(series.FoldV1(s, e), series.FoldV1(s, e))
	})
	tenant := y.Tenants(1)[0]
	declare(y.Pipeline.Database, "calls", time.Time{})
	y.Append(Usage(tenant, "a", "calls", 5, May), Usage(tenant, "b", "calls", 7, May.Add(time.Hour)))
	y.Settle()
	y.Deploy()
	q := series.Query{TenantID: tenant, Feature: "calls", From: May, To: May.Add(2 * time.Hour), Granularity: series.Hour, Limit: 1}
	first, err := y.Reads.Read(t.Context(), Operator, q)
	y.Must(err)
	r := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionSeries})
	y.Must(y.Promote(r))
	q.After = first.Next
	next, err := y.Reads.Read(t.Context(), Operator, q)
	if err != nil || first.Data[0].Amount != "5" || next.Data[0].Amount != "7" {
		t.Errorf("%+v, then %+v %v", first, next, err)
	}
	if q.After = ""; described(allBuckets(y.Pipeline, q)) != "0501T00 10/2 0501T01 14/2 " {
		t.Errorf("promoted: %s", described(allBuckets(y.Pipeline, q)))
	}
	y.Must(
		Second(
			y.Pool.Exec(
				t.Context(),
				`UPDATE projection_generations SET dropped_at = now() WHERE projection = 'usage_series' AND generation = 1`,
			),
		),
	)
	q.After = first.Next
	if _, err := y.Reads.Read(t.Context(), Operator, q); err != query.ErrCursorInvalid {
		t.Errorf("the generation is gone: %v", err)
	}
}

// P12: a page reads the hours of its buckets, however many hours, tenants and groups there are.
func TestP12_PagesOfASeriesDoNotGrowWithTheTenant(t *testing.T) {
	tier.AtSize(t)
	s := NewSized(t)
	declare(s.Pipeline.Database, "calls", time.Time{}, "region")
	s.Must(
		Second(
			s.Pool.Exec(
				t.Context(),
				`INSERT INTO usage_series SELECT 1, $3, $1, f, $2::timestamptz + h * interval '1 hour', '{"region":"' || g || '"}', 1, 1
		FROM unnest(ARRAY['calls', 'tokens']) f, generate_series(0, 9999) h, unnest(ARRAY['eu', 'us', 'ap']) g`,
				s.Tenant,
				May,
				s.Partition,
			),
		),
	)
	s.Must(Second(s.Pool.Exec(t.Context(), `ANALYZE usage_series`)))
	s.EndSessions()
	for key, viewer := range s.Viewers() {
		for _, c := range []struct {
			granularity series.Granularity
			by          []string
			limit       int
			most        int64
		}{{series.Hour, nil, 100, 800}, {series.Hour, []string{"region"}, 100, 1000}, {series.Day, nil, 7, 8*24*3*2 + 300},
			{series.Day, []string{"region"}, 7, 8*24*3*2 + 300}} {
			q := series.Query{
				TenantID:    s.Tenant,
				Feature:     "calls",
				From:        May.AddDate(0, 0, 200),
				To:          May.AddDate(0, 0, 400),
				Granularity: c.granularity,
				GroupBy:     c.by,
				Limit:       c.limit,
			}
			for range 2 {
				s.AtMost(c.most, fmt.Sprintf("a page by %s, %d groups, by a key of the %s", c.granularity, len(c.by), key), func() {
					page, err := s.Reads.Read(t.Context(), viewer, q)
					if err != nil || len(page.Data) != c.limit || page.Next == "" {
						t.Errorf("%d entries: %v", len(page.Data), err)
					}
					q.After = page.Next
				})
			}
		}
	}
}

// writeGroups writes hours of $3 groups in each of $4 hours from a time on: of the key region, of region and model, and
// of no key.
const writeGroups = `
INSERT INTO usage_series (generation, partition, tenant_id, feature, hour, group_values, amount, event_count)
SELECT 1, 0, $1, 'calls', $2::timestamptz + h * interval '1 hour', g.group_values, CASE n WHEN 0 THEN 0 ELSE n * 1000 + h END, least(n, 1)
FROM generate_series(0, $4::int - 1) h, (
  SELECT n, format('{"region":"v%s"}', lpad(n::text, 4, '0')) AS group_values FROM generate_series(1, $3::int) n
  UNION ALL SELECT 5, '{}' UNION ALL SELECT 7, '{"region":null}' UNION ALL SELECT 11, '{"region":"other"}'
  UNION ALL SELECT 13, '{"model":"m","region":"v0001"}' UNION ALL SELECT 17, '{"model":null,"region":"<\"é"}'
  UNION ALL SELECT 0, '{"model":"zero"}') g (n, group_values)`

// monthsInOne reads the entries of months by one statement over all hours.
const monthsInOne = `
SELECT month, a, b, amount::text, events FROM (
  SELECT to_char(date_trunc('month', hour AT TIME ZONE 'UTC'), 'YYYY-MM') AS month, group_values::json ->> $2 AS a,
  group_values::json ->> $3 AS b, sum(amount) AS amount, sum(event_count) AS events
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
	q := series.Query{
		TenantID:    tenant,
		Feature:     "calls",
		From:        May,
		To:          May.AddDate(20, 0, 0),
		Granularity: series.Month,
		GroupBy:     by,
		Limit:       limit,
	}
	for _, b := range allBuckets(s.Pipeline, q) {
		text, _ := json.Marshal(b.Group)
		got = append(got, fmt.Sprint(b.Start.Format("2006-01"), " ", string(text), " ", b.Amount, " ", b.EventCount))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || len(want) < 2 {
		s.Errorf("by %s, %d a page:\ngot  %q\nwant %q", by, limit, got, want)
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
	}{{few, May.Add(740 * time.Hour), 30, 10}, {few, May.AddDate(0, 8, 3), 9, 5}, {few, May.AddDate(0, 9, 0).Add(-time.Hour), 12, 2},
		{many, May, 2100, 2}} {
		s.Must(Second(s.Pool.Exec(context.Background(), writeGroups, w.tenant, w.at, w.groups, w.hours)))
	}
	for _, by := range [][]string{{"region"}, {"model"}, {"region", "model"}, {"model", "region"}} {
		for _, limit := range []int{7, 1000, 1}[:tier.Draws(t, 2, 3)] {
			checkMonths(s, few, limit, by...)
		}
		checkMonths(s, many, 1000, by...)
	}
}
