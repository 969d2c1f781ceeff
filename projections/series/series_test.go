package series_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/series"
)

// declare adds a feature with the keys that it groups by from a time on.
func declare(w *Database, feature string, since time.Time, keys ...string) {
	w.Helper()
	w.Must(Second(w.Pool.Exec(context.Background(), `INSERT INTO features (lookup_key, name, type, unit) VALUES ($1, 'F', 'METERED', '')
		ON CONFLICT DO NOTHING`, feature)))
	w.Must(Second(w.Pool.Exec(context.Background(), `INSERT INTO feature_groupings VALUES ($1, $2, coalesce($3::text[], '{}'))`, feature,
		since, keys)))
}

// taggedUsage is usage with metadata.
func taggedUsage(tenant uuid.UUID, id, feature string, amount int64, at time.Time, metadata string) events.Pending {
	p := Usage(tenant, id, feature, amount, at)
	body, err := json.Marshal(events.Usage{EventID: id, Feature: feature, Amount: amount, Timestamp: at, Type: "usage",
		Metadata: json.RawMessage(metadata)})
	if err != nil {
		panic(err)
	}
	p.Payload = body
	return p
}

// allBuckets reads all pages of a series by a tenant's key.
func allBuckets(s *Pipeline, q series.Query) (all []series.Bucket) {
	s.Helper()
	for {
		page, err := s.Reads.Read(context.Background(), TenantViewer(q.TenantID), q)
		s.Must(err)
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
	y := NewSourRebuilds(t)
	declare(y.Pipeline.Database, "calls", time.Time{}, "region")
	localtest.FewChecks(t, 6)
	sent, figures := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		tenants := y.Tenants(rapid.IntRange(1, 3).Draw(rt, "tenants"))
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"record", "record", "validate", "aggregate", "sum", "settle", "retry"}).Draw(rt, "step") {
			case "record":
				var batch []events.Pending
				for range rapid.IntRange(1, 30).Draw(rt, "events") {
					at := May.Add(time.Duration(rapid.Int64Range(-40*24*3600e6, 40*24*3600e6).Draw(rt, "at")) * time.Microsecond)
					feature := rapid.SampledFrom([]string{"calls", "tokens", "broken", "unknown"}).Draw(rt, "feature")
					region := rapid.SampledFrom([]string{`{"region":"eu"}`, `{"region":"us"}`, `{}`, `{"region":null}`, `{"region":7}`}).
						Draw(rt, "region")
					batch = append(batch, taggedUsage(rapid.SampledFrom(tenants).Draw(rt, "tenant"), fmt.Sprint("s", sent), feature,
						rapid.Int64Range(1, 1<<53-1).Draw(rt, "amount"), at, region))
					sent++
				}
				y.Append(batch...)
			case "validate":
				y.Drain(y.Validating)
			case "aggregate":
				y.Drain(y.Aggregating)
			case "sum":
				y.Drain(y.Summing)
			case "settle":
				y.Settle()
			case "retry":
				y.Settle()
				y.RetryBroken(rapid.IntRange(0, 20).Draw(rt, "retried"))
			}
		}
		y.Settle()
		figures = y.CheckHours()
	})
	r := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionSeries})
	if err := y.SameRows(r, 1); err != nil {
		t.Error(err)
	}
	if figures == 0 {
		t.Error("nothing was compared")
	}
}

// A verdict that the aggregator could not count is in no hour, its successful retry is.
func TestP5_HoursLeaveOutVerdictsThatTheAggregatesDo(t *testing.T) {
	y := NewSourRebuilds(t)
	tenant := y.Tenants(1)[0]
	declare(y.Pipeline.Database, "broken", time.Time{}, "region")
	y.Append(taggedUsage(tenant, "a", "broken", 5, May, `{"region":"eu"}`), Usage(tenant, "b", "calls", 7, May))
	y.Drain(y.Validating, y.Summing) // before the aggregator fails
	q := series.Query{TenantID: tenant, Feature: "broken", From: May, To: May.Add(24 * time.Hour), Granularity: series.Hour,
		GroupBy: []string{"region"}, Limit: 10}
	y.Settle()
	if got := described(allBuckets(y.Pipeline, q)); got != "" {
		t.Errorf("a verdict that failed is in %s", got)
	}
	y.CheckHours()
	y.Folds = models.DefaultFolds() // the aggregator is fixed
	y.Deploy()
	y.RetryBroken(10)
	y.Settle()
	if got := described(allBuckets(y.Pipeline, q)); got != `0501T00 5/1{"region":"eu"} ` {
		t.Errorf("after the retry: %s", got)
	}
	y.CheckHours()
}

// Usage counts in the hour of its own time in UTC, exactly up to the microsecond.
func TestHoursBeginAndEndExactly(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	declare(s.Database, "calls", time.Time{})
	s.Subscribe(tenant, May.AddDate(0, -2, 0), Grant("calls", domain.ResetMonthly))
	for i, at := range []time.Time{May.Add(-time.Microsecond), May, May.Add(time.Hour - time.Microsecond), May.Add(time.Hour),
		May.Add(23*time.Hour + 59*time.Minute + 59*time.Second + 999999*time.Microsecond), May.Add(24 * time.Hour),
		May.AddDate(0, 1, 0).Add(-time.Microsecond).In(time.FixedZone("", 7200))} {
		s.Append(Usage(tenant, fmt.Sprint(i), "calls", 1<<i, at))
	}
	s.Settle()
	q := series.Query{TenantID: tenant, Feature: "calls", From: May.AddDate(0, -1, 0), To: May.AddDate(0, 1, 0), Limit: 1000}
	for granularity, want := range map[series.Granularity]string{
		series.Hour:  "0430T23 1/1 0501T00 6/2 0501T01 8/1 0501T23 16/1 0502T00 32/1 0531T23 64/1 ",
		series.Day:   "0430T00 1/1 0501T00 30/4 0502T00 32/1 0531T00 64/1 ",
		series.Month: "0401T00 1/1 0501T00 126/6 ",
	} {
		q.Granularity = granularity
		all := allBuckets(s, q)
		if got := described(all); got != want || len(all) != granularity.Buckets(q.From, q.To) {
			t.Errorf("%s: %d buckets, %s, want %s", granularity, len(all), got, want)
		}
		for i := range all {
			if !all[i].End.Equal(granularity.Next(all[i].Start)) || i > 0 && !all[i].Start.Equal(all[i-1].End) {
				t.Errorf("%s: %s follows %s", granularity, all[i].Start, all[i-1].End)
			}
		}
	}
	s.CheckHours()
}

// Usage that was recorded before its feature declared keys is not grouped, also not by a rebuild.
func TestP5_KeysApplyToUsageRecordedLater(t *testing.T) {
	y := NewRebuilds(t)
	tenant := y.Tenants(1)[0]
	y.Append(taggedUsage(tenant, "before", "calls", 1, May, `{"region":"eu"}`))
	declare(y.Pipeline.Database, "calls", time.Now(), "region")
	time.Sleep(time.Millisecond) // the clock of the log
	y.Append(taggedUsage(tenant, "after", "calls", 2, May, `{"region":"eu"}`))
	y.Settle()
	q := series.Query{TenantID: tenant, Feature: "calls", From: May, To: May.AddDate(0, 0, 1), Granularity: series.Day,
		GroupBy: []string{"region"}, Limit: 10}
	const want = `0501T00 2/1{"region":"eu"} 0501T00 1/1{"region":null} `
	if got := described(allBuckets(y.Pipeline, q)); got != want {
		t.Errorf("live: %s", got)
	}
	r := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionSeries})
	y.Must(y.Promote(r))
	if got := described(allBuckets(y.Pipeline, q)); got != want {
		t.Errorf("rebuilt: %s", got)
	}
}

// P5: the first 1,000 values of a key in the order of the log have groups of their own, in any batches.
func TestP5_ValuesAfterTheThousandthAreOther(t *testing.T) {
	y := NewRebuilds(t)
	tenants := y.Tenants(2)
	declare(y.Pipeline.Database, "calls", time.Time{}, "user")
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < 1300; {
		var batch []events.Pending
		for range 130 {
			batch = append(batch, taggedUsage(tenants[0], fmt.Sprint(i), "calls", 1, May, fmt.Sprintf(`{"user":"u%04d"}`, i)))
			i++
		}
		batch = append(batch, taggedUsage(tenants[0], fmt.Sprint("again", i), "calls", 1, May,
			fmt.Sprintf(`{"user":"u%04d"}`, random.IntN(i))))
		batch = append(batch, taggedUsage(tenants[1], fmt.Sprint(i), "calls", 1, May, `{"user":"u1299"}`))
		y.Append(batch...)
		y.Drain(y.Validating)
		y.Summing.Consumer.MaxPerPartition = 1 + random.IntN(300)
		y.Drain(y.Summing)
	}
	q := series.Query{TenantID: tenants[0], Feature: "calls", From: May, To: May.AddDate(0, 0, 1), Granularity: series.Day,
		GroupBy: []string{"user"}, Limit: 300}
	values, others := map[string]bool{}, int64(0)
	for _, b := range allBuckets(y.Pipeline, q) {
		values[*b.Group["user"]] = true
		if *b.Group["user"] == "other" {
			others = b.EventCount
		}
	}
	if len(values) != 1001 || !values["u0000"] || !values["u0999"] || values["u1000"] || others < 300 || others > 310 {
		t.Errorf("%d values, %d events of others", len(values), others)
	}
	q.TenantID = tenants[1]
	if got := described(allBuckets(y.Pipeline, q)); got != `0501T00 10/10{"user":"u1299"} ` {
		t.Errorf("the other tenant: %s", got)
	}
	r := y.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionSeries})
	if err := y.SameRows(r, 1); err != nil {
		t.Error(err)
	}
}
