package projections_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/series"
)

// Groups are those of the keys that the feature had when the usage was recorded.
func TestUsageIsGroupedByTheKeysOfItsFeature(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	s.declare("calls", time.Now().Add(-time.Hour), "region", "model")
	long, _ := json.Marshal(make([]byte, 100))
	for i, metadata := range []string{`{"region":"eu","model":"s"}`, `{"region":"eu","model":"l"}`, `{"region":"us","model":"s"}`, `{"model":"s"}`, `{}`, `{"region":7,"model":true}`,
		`{"region":{"a":1},"model":` + string(long) + `}`, `{"region":"a|b","model":"\"<"}`, `{"region":"eu","model":"s"}`} {
		s.append(taggedUsage(tenant, fmt.Sprint(i), "calls", 1<<i, may.Add(time.Duration(i/8)*time.Hour), metadata))
	}
	s.settle()
	q := series.Query{TenantID: tenant, Feature: "calls", From: may, To: may.AddDate(0, 0, 2), Granularity: series.Day, Limit: 1}
	for _, c := range []struct {
		by   []string
		want string
	}{
		{nil, "0501T00 511/9 "},
		{[]string{"region"}, `0501T00 32/1{"region":"7"} 0501T00 128/1{"region":"a|b"} 0501T00 259/3{"region":"eu"} 0501T00 64/1{"region":"other"} 0501T00 4/1{"region":"us"} 0501T00 24/2{"region":null} `},
		{[]string{"model"}, `0501T00 128/1{"model":"\"\u003c"} 0501T00 2/1{"model":"l"} 0501T00 64/1{"model":"other"} 0501T00 269/4{"model":"s"} 0501T00 32/1{"model":"true"} 0501T00 16/1{"model":null} `},
		{[]string{"model", "region"}, `0501T00 128/1{"model":"\"\u003c","region":"a|b"} 0501T00 2/1{"model":"l","region":"eu"} 0501T00 64/1{"model":"other","region":"other"} ` +
			`0501T00 257/2{"model":"s","region":"eu"} 0501T00 4/1{"model":"s","region":"us"} 0501T00 8/1{"model":"s","region":null} 0501T00 32/1{"model":"true","region":"7"} 0501T00 16/1{"model":null,"region":null} `},
	} {
		q.GroupBy = c.by
		for _, limit := range []int{1, 3, 100} {
			if q.Limit = limit; described(s.allBuckets(q)) != c.want {
				t.Errorf("by %s, %d a page:\ngot  %s\nwant %s", c.by, limit, described(s.allBuckets(q)), c.want)
			}
		}
	}
	q.GroupBy = []string{"Region"}
	if _, err := s.reads.Read(t.Context(), operator, q); refusal(err) != "parameter_invalid" {
		t.Errorf("an undeclared key: %v", err)
	}
	q.Feature = "call"
	if _, err := s.reads.Read(t.Context(), operator, q); refusal(err) != "feature_not_found" {
		t.Errorf("an unknown feature: %v", err)
	}
}

// P12: a series is complete up to the events that were folded, and says no more while the projector lags.
func TestP12_ASeriesIsCompleteUpToWhatWasFolded(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.declare("calls", time.Time{})
	q := series.Query{TenantID: tenant, Feature: "calls", From: may, To: may.AddDate(0, 0, 1), Granularity: series.Day, Limit: 10}
	read := func() series.Page {
		t.Helper()
		page, err := s.reads.Read(t.Context(), tenantViewer(tenant), q)
		s.must(err)
		return page
	}
	if empty := read(); empty.CompleteUpTo != nil || empty.AsOf.Number != 0 || empty.Data[0].Amount != "0" {
		t.Errorf("an empty log: %+v", empty)
	}
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	first := s.append(usageEvent(tenant, "a", "calls", 1, may))[0]
	s.settle()
	before := read()
	recorded := func(position int64) (at time.Time) {
		s.must(s.pool.QueryRow(t.Context(), `SELECT recorded_at FROM event_log WHERE partition = $1 AND position = $2`, first.Partition, position).Scan(&at))
		return at.UTC()
	}
	if before.AsOf.Number != s.head(tenant).Number || !before.CompleteUpTo.Equal(recorded(before.AsOf.Number)) {
		t.Errorf("all is folded: %+v", before)
	}
	second := s.append(usageEvent(tenant, "b", "calls", 2, may))[0]
	s.drain(s.validating, s.aggregating, s.lettering, s.entitling) // and not the projector of the series
	after := read()
	if after.AsOf.Number >= second.Number || after.CompleteUpTo.After(recorded(second.Number-1)) || after.Data[0].Amount != "1" {
		t.Errorf("the projector lags: %s after %s up to %s, complete up to %s", after.Data[0].Amount, before.AsOf, after.AsOf, after.CompleteUpTo)
	}
	q.Wait = query.Wait{MinPosition: &second}
	if _, err := s.reads.Read(t.Context(), operator, q); err != query.ErrProjectionBehind {
		t.Errorf("a wait: %v", err)
	}
	s.settle()
	if page := read(); page.Data[0].Amount != "3" || page.AsOf.Number < second.Number {
		t.Errorf("after the wait: %+v", page)
	}
}

// P5: pages of a list stay in the generation that it began in.
func TestP5_PagesOfASeriesStayInTheirGeneration(t *testing.T) {
	y := newRebuildFixture(t)
	y.folds.Series = y.folds.Series.With(projections.ProjectionSeries+"/doubled", func(s *series.State, e *events.Envelope) error {
		return errors.Join(series.FoldV1(s, e), series.FoldV1(s, e))
	})
	tenant := y.tenants(1)[0]
	y.declare("calls", time.Time{})
	y.append(usageEvent(tenant, "a", "calls", 5, may), usageEvent(tenant, "b", "calls", 7, may.Add(time.Hour)))
	y.settle()
	y.deploy()
	q := series.Query{TenantID: tenant, Feature: "calls", From: may, To: may.Add(2 * time.Hour), Granularity: series.Hour, Limit: 1}
	first, err := y.reads.Read(t.Context(), operator, q)
	y.must(err)
	r := y.rebuilt(commands.StartRebuild{Projection: projections.ProjectionSeries})
	y.must(y.promote(r))
	q.After = first.Next
	next, err := y.reads.Read(t.Context(), operator, q)
	if err != nil || first.Data[0].Amount != "5" || next.Data[0].Amount != "7" {
		t.Errorf("%+v, then %+v %v", first, next, err)
	}
	if q.After = ""; described(y.allBuckets(q)) != "0501T00 10/2 0501T01 14/2 " {
		t.Errorf("promoted: %s", described(y.allBuckets(q)))
	}
	y.must(second(y.pool.Exec(t.Context(), `UPDATE projection_generations SET dropped_at = now() WHERE projection = 'usage_series' AND generation = 1`)))
	q.After = first.Next
	if _, err := y.reads.Read(t.Context(), operator, q); err != query.ErrCursorInvalid {
		t.Errorf("the generation is gone: %v", err)
	}
}

// P12: a page reads the hours of its buckets, however many hours, tenants and groups there are.
func TestP12_PagesOfASeriesDoNotGrowWithTheTenant(t *testing.T) {
	tier.AtSize(t)
	s := newSizeFixture(t)
	s.declare("calls", time.Time{}, "region")
	s.must(second(s.pool.Exec(t.Context(), `INSERT INTO usage_series SELECT 1, $3, $1, f, $2::timestamptz + h * interval '1 hour', '{"region":"' || g || '"}', 1, 1
		FROM unnest(ARRAY['calls', 'tokens']) f, generate_series(0, 9999) h, unnest(ARRAY['eu', 'us', 'ap']) g`, s.tenant, may, s.partition)))
	s.must(second(s.pool.Exec(t.Context(), `ANALYZE usage_series`)))
	s.endSessions()
	for key, viewer := range s.viewers() {
		for _, c := range []struct {
			granularity series.Granularity
			by          []string
			limit       int
			most        int64
		}{{series.Hour, nil, 100, 800}, {series.Hour, []string{"region"}, 100, 1000}, {series.Day, nil, 7, 8*24*3*2 + 300}, {series.Day, []string{"region"}, 7, 8*24*3*2 + 300}} {
			q := series.Query{TenantID: s.tenant, Feature: "calls", From: may.AddDate(0, 0, 200), To: may.AddDate(0, 0, 400), Granularity: c.granularity, GroupBy: c.by, Limit: c.limit}
			for range 2 {
				s.atMost(c.most, fmt.Sprintf("a page by %s, %d groups, by a key of the %s", c.granularity, len(c.by), key), func() {
					page, err := s.reads.Read(t.Context(), viewer, q)
					if err != nil || len(page.Data) != c.limit || page.Next == "" {
						t.Errorf("%d entries: %v", len(page.Data), err)
					}
					q.After = page.Next
				})
			}
		}
	}
}
