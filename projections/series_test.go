package projections_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/series"
)

// unlikeFigures lists the figures that are not the sum of their hours, of every tenant and feature. A feature has one
// reset period here.
const unlikeFigures = `
WITH hours AS (
  SELECT s.tenant_id, s.feature, f.period_key, sum(s.amount) AS amount, sum(s.event_count) AS events
  FROM usage_series s
  LEFT JOIN LATERAL (SELECT DISTINCT a.period_key FROM usage_aggregates a
    WHERE a.generation = live_generation('usage_aggregates', a.tenant_id, a.period_key) AND a.tenant_id = s.tenant_id AND a.feature = s.feature
      AND (a.period_start IS NULL OR s.hour >= a.period_start AND s.hour < a.period_end)) f ON true
  WHERE s.generation = live_generation('usage_series', s.tenant_id)
  GROUP BY 1, 2, 3 HAVING sum(s.event_count) <> 0 OR sum(s.amount) <> 0),
figures AS (
  SELECT a.tenant_id, a.feature, a.period_key, sum(a.amount) AS amount, sum(a.event_count) AS events
  FROM usage_aggregates a WHERE a.generation = live_generation('usage_aggregates', a.tenant_id, a.period_key) GROUP BY 1, 2, 3)
SELECT coalesce(string_agg(format('%s %s %s: hours %s in %s, figure %s in %s', tenant_id, feature, period_key, h.amount, h.events, f.amount, f.events), E'\n'), ''),
       (SELECT count(*) FROM hours)
FROM hours h FULL JOIN figures f USING (tenant_id, feature, period_key)
WHERE h.amount IS DISTINCT FROM f.amount OR h.events IS DISTINCT FROM f.events`

// checkHours compares the sums of the hours with the figures, and returns how many there are.
func (w *logFixture) checkHours() (figures int) {
	w.Helper()
	var unlike string
	w.must(w.pool.QueryRow(context.Background(), unlikeFigures).Scan(&unlike, &figures))
	if unlike != "" {
		w.Fatalf("figures are not the sums of their hours:\n%s", unlike)
	}
	return figures
}

// declare adds a feature with the keys that it groups by from a time on.
func (w *logFixture) declare(feature string, since time.Time, keys ...string) {
	w.Helper()
	w.must(second(w.pool.Exec(context.Background(), `INSERT INTO features (lookup_key, name, type, unit) VALUES ($1, 'F', 'METERED', '') ON CONFLICT DO NOTHING`, feature)))
	w.must(second(w.pool.Exec(context.Background(), `INSERT INTO feature_groupings VALUES ($1, $2, coalesce($3::text[], '{}'))`, feature, since, keys)))
}

// taggedUsage is usage with metadata.
func taggedUsage(tenant uuid.UUID, id, feature string, amount int64, at time.Time, metadata string) events.Pending {
	p := usageEvent(tenant, id, feature, amount, at)
	body, err := json.Marshal(events.Usage{EventID: id, Feature: feature, Amount: amount, Timestamp: at, Type: "usage", Metadata: json.RawMessage(metadata)})
	if err != nil {
		panic(err)
	}
	p.Payload = body
	return p
}

// allBuckets reads all pages of a series by a tenant's key.
func (s *pipelineFixture) allBuckets(q series.Query) (all []series.Bucket) {
	s.Helper()
	for {
		page, err := s.reads.Read(context.Background(), tenantViewer(q.TenantID), q)
		s.must(err)
		all = append(all, page.Data...)
		if q.After = page.Next; q.After == "" {
			return all
		}
	}
}

// described writes buckets as "time amount/count group …", without those of zero.
func described(all []series.Bucket) (text string) {
	for _, b := range all {
		if b.EventCount == 0 {
			continue
		}
		group, err := json.Marshal(b.Group)
		if err != nil {
			panic(err)
		}
		text += fmt.Sprintf("%s %s/%d", b.Start.Format("0102T15"), b.Amount, b.EventCount)
		if b.Group != nil {
			text += string(group)
		}
		text += " "
	}
	return text
}

// P5: whatever fails, is retried or discarded, the hours of a period add up to its figure, live, redelivered and rebuilt.
func TestP5_HoursAddUpToTheFigures(t *testing.T) {
	y := newSourFixture(t)
	y.declare("calls", time.Time{}, "region")
	localtest.FewChecks(t, 6)
	sent, figures := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		tenants := y.tenants(rapid.IntRange(1, 3).Draw(rt, "tenants"))
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"record", "record", "validate", "aggregate", "sum", "settle", "retry"}).Draw(rt, "step") {
			case "record":
				var batch []events.Pending
				for range rapid.IntRange(1, 30).Draw(rt, "events") {
					at := may.Add(time.Duration(rapid.Int64Range(-40*24*3600e6, 40*24*3600e6).Draw(rt, "at")) * time.Microsecond)
					feature := rapid.SampledFrom([]string{"calls", "tokens", "broken", "unknown"}).Draw(rt, "feature")
					region := rapid.SampledFrom([]string{`{"region":"eu"}`, `{"region":"us"}`, `{}`, `{"region":null}`, `{"region":7}`}).Draw(rt, "region")
					batch = append(batch, taggedUsage(rapid.SampledFrom(tenants).Draw(rt, "tenant"), fmt.Sprint("s", sent), feature, rapid.Int64Range(1, 1<<53-1).Draw(rt, "amount"), at, region))
					sent++
				}
				y.append(batch...)
			case "validate":
				y.drain(y.validating)
			case "aggregate":
				y.drain(y.aggregating)
			case "sum":
				y.drain(y.summing)
			case "settle":
				y.settle()
			case "retry":
				y.settle()
				y.retryBroken(rapid.IntRange(0, 20).Draw(rt, "retried"))
			}
		}
		y.settle()
		figures = y.checkHours()
	})
	r := y.rebuilt(commands.StartRebuild{Projection: projections.ProjectionSeries})
	if err := y.sameRows(r, 1); err != nil {
		t.Error(err)
	}
	if figures == 0 {
		t.Error("nothing was compared")
	}
}

// A verdict that the aggregator could not count is in no hour, its successful retry is.
func TestP5_HoursLeaveOutVerdictsThatTheAggregatesDo(t *testing.T) {
	y := newSourFixture(t)
	tenant := y.tenants(1)[0]
	y.declare("broken", time.Time{}, "region")
	y.append(taggedUsage(tenant, "a", "broken", 5, may, `{"region":"eu"}`), usageEvent(tenant, "b", "calls", 7, may))
	y.drain(y.validating, y.summing) // before the aggregator fails
	q := series.Query{TenantID: tenant, Feature: "broken", From: may, To: may.Add(24 * time.Hour), Granularity: series.Hour, GroupBy: []string{"region"}, Limit: 10}
	y.settle()
	if got := described(y.allBuckets(q)); got != "" {
		t.Errorf("a verdict that failed is in %s", got)
	}
	y.checkHours()
	y.folds = models.DefaultFolds() // the aggregator is fixed
	y.deploy()
	y.retryBroken(10)
	y.settle()
	if got := described(y.allBuckets(q)); got != `0501T00 5/1{"region":"eu"} ` {
		t.Errorf("after the retry: %s", got)
	}
	y.checkHours()
}

// P11: a verdict that the pipe refused is in no hour.
func TestP11_HoursLeaveOutWithheldVerdicts(t *testing.T) {
	s := newWithheldFixture(t)
	_, at := s.appendTwo(events.TopicUsageValidated)
	s.drain(s.summing)
	s.pipe.refuse(at)
	s.publishLog()
	s.settle()
	s.drain(s.summing)
	if s.checkHours() != 1 {
		t.Error("the other verdict is not counted")
	}
}

// Usage counts in the hour of its own time in UTC, exactly up to the microsecond.
func TestHoursBeginAndEndExactly(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.declare("calls", time.Time{})
	s.subscribe(tenant, may.AddDate(0, -2, 0), grant("calls", domain.ResetMonthly))
	for i, at := range []time.Time{may.Add(-time.Microsecond), may, may.Add(time.Hour - time.Microsecond), may.Add(time.Hour),
		may.Add(23*time.Hour + 59*time.Minute + 59*time.Second + 999999*time.Microsecond), may.Add(24 * time.Hour), may.AddDate(0, 1, 0).Add(-time.Microsecond).In(time.FixedZone("", 7200))} {
		s.append(usageEvent(tenant, fmt.Sprint(i), "calls", 1<<i, at))
	}
	s.settle()
	q := series.Query{TenantID: tenant, Feature: "calls", From: may.AddDate(0, -1, 0), To: may.AddDate(0, 1, 0), Limit: 1000}
	for granularity, want := range map[series.Granularity]string{
		series.Hour:  "0430T23 1/1 0501T00 6/2 0501T01 8/1 0501T23 16/1 0502T00 32/1 0531T23 64/1 ",
		series.Day:   "0430T00 1/1 0501T00 30/4 0502T00 32/1 0531T00 64/1 ",
		series.Month: "0401T00 1/1 0501T00 126/6 ",
	} {
		q.Granularity = granularity
		all := s.allBuckets(q)
		if got := described(all); got != want || len(all) != granularity.Buckets(q.From, q.To) {
			t.Errorf("%s: %d buckets, %s, want %s", granularity, len(all), got, want)
		}
		for i := range all {
			if !all[i].End.Equal(granularity.Next(all[i].Start)) || i > 0 && !all[i].Start.Equal(all[i-1].End) {
				t.Errorf("%s: %s follows %s", granularity, all[i].Start, all[i-1].End)
			}
		}
	}
	s.checkHours()
}

// Usage that was recorded before its feature declared keys is not grouped, also not by a rebuild.
func TestP5_KeysApplyToUsageRecordedLater(t *testing.T) {
	y := newRebuildFixture(t)
	tenant := y.tenants(1)[0]
	y.append(taggedUsage(tenant, "before", "calls", 1, may, `{"region":"eu"}`))
	y.declare("calls", time.Now(), "region")
	time.Sleep(time.Millisecond) // the clock of the log
	y.append(taggedUsage(tenant, "after", "calls", 2, may, `{"region":"eu"}`))
	y.settle()
	q := series.Query{TenantID: tenant, Feature: "calls", From: may, To: may.AddDate(0, 0, 1), Granularity: series.Day, GroupBy: []string{"region"}, Limit: 10}
	const want = `0501T00 2/1{"region":"eu"} 0501T00 1/1{"region":null} `
	if got := described(y.allBuckets(q)); got != want {
		t.Errorf("live: %s", got)
	}
	r := y.rebuilt(commands.StartRebuild{Projection: projections.ProjectionSeries})
	y.must(y.promote(r))
	if got := described(y.allBuckets(q)); got != want {
		t.Errorf("rebuilt: %s", got)
	}
}

// P5: the first 1,000 values of a key in the order of the log have groups of their own, in any batches.
func TestP5_ValuesAfterTheThousandthAreOther(t *testing.T) {
	y := newRebuildFixture(t)
	tenants := y.tenants(2)
	y.declare("calls", time.Time{}, "user")
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < 1300; {
		var batch []events.Pending
		for range 130 {
			batch = append(batch, taggedUsage(tenants[0], fmt.Sprint(i), "calls", 1, may, fmt.Sprintf(`{"user":"u%04d"}`, i)))
			i++
		}
		batch = append(batch, taggedUsage(tenants[0], fmt.Sprint("again", i), "calls", 1, may, fmt.Sprintf(`{"user":"u%04d"}`, random.IntN(i))))
		batch = append(batch, taggedUsage(tenants[1], fmt.Sprint(i), "calls", 1, may, `{"user":"u1299"}`))
		y.append(batch...)
		y.drain(y.validating)
		y.summing.Consumer.MaxPerPartition = 1 + random.IntN(300)
		y.drain(y.summing)
	}
	q := series.Query{TenantID: tenants[0], Feature: "calls", From: may, To: may.AddDate(0, 0, 1), Granularity: series.Day, GroupBy: []string{"user"}, Limit: 300}
	values, others := map[string]bool{}, int64(0)
	for _, b := range y.allBuckets(q) {
		values[*b.Group["user"]] = true
		if *b.Group["user"] == "other" {
			others = b.EventCount
		}
	}
	if len(values) != 1001 || !values["u0000"] || !values["u0999"] || values["u1000"] || others < 300 || others > 310 {
		t.Errorf("%d values, %d events of others", len(values), others)
	}
	q.TenantID = tenants[1]
	if got := described(y.allBuckets(q)); got != `0501T00 10/10{"user":"u1299"} ` {
		t.Errorf("the other tenant: %s", got)
	}
	r := y.rebuilt(commands.StartRebuild{Projection: projections.ProjectionSeries})
	if err := y.sameRows(r, 1); err != nil {
		t.Error(err)
	}
}
