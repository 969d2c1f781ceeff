package projections_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
)

// usageStates are all states of recorded usage.
func usageStates() []string {
	return []string{projections.UsagePending, projections.UsageValidated, projections.UsageAggregated, projections.UsageRejected, projections.UsageDeadLettered}
}

// checkLists holds the lists of the tenant's usage, by each filter, against the receipts of all of
// its events.
func (d *history) checkLists(rt *rapid.T, found map[string]int) {
	own, _ := d.readAll()
	var all []audit.Receipt
	for i := range own {
		if own[i].Subject == events.UsageRecorded {
			all = append(all, d.receipt(d.tenant, own[i].DedupeKey[len("u/"):]))
		}
	}
	slices.Reverse(all)
	filters := []audit.EventQuery{{}, {Feature: "calls"}, {Feature: "unknown"}, {From: new(may), To: new(may.AddDate(0, 1, 0))}, {From: new(may.Add(time.Hour)), Feature: "calls"}}
	for _, status := range append(usageStates(), "", "DUPLICATE") {
		q := rapid.SampledFrom(filters).Draw(rt, "filter")
		q.Status = status
		var want []string
		for i := range all {
			used := usageOf(d, &all[i])
			if (q.Status == "" || all[i].Status == q.Status) && (q.Feature == "" || used.Feature == q.Feature) &&
				(q.From == nil || !used.Timestamp.Before(*q.From)) && (q.To == nil || used.Timestamp.Before(*q.To)) {
				want = append(want, all[i].EventID+" "+all[i].Status)
			}
		}
		found[q.Status] += len(want)
		d.reads.ListFor = rapid.SampledFrom([]time.Duration{time.Nanosecond, 0}).Draw(rt, "for")
		q.TenantID, q.Limit, q.After = d.tenant, rapid.IntRange(1, 5).Draw(rt, "limit"), ""
		var got []string
		for {
			page, err := d.reads.UsageEvents(context.Background(), rapid.SampledFrom([]query.Viewer{tenantViewer(d.tenant), operator}).Draw(rt, "viewer"), q)
			d.must(err)
			for _, u := range page.Data {
				got = append(got, u.EventID+" "+u.Status)
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("%+v lists %q instead of %q", q, got, want)
		}
	}
}

// P12: a list of usage by any filter holds the events whose receipts say so, whatever is in flight.
func TestP12_ListsOfUsageMatchTheReceipts(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := newPipelineFixture(t)
	found := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		d := newHistory(s)
		d.addFailures()
		for range rapid.IntRange(2, 14).Draw(rt, "steps") {
			d.addStep(rt)
		}
		if rapid.Bool().Draw(rt, "all are validated") { // few histories end so by themselves
			d.readAtMost(d.validating, d.partition, 100)
		}
		d.checkLists(rt, found)
		d.Rest()
		d.checkLists(rt, found)
	})
	for _, status := range usageStates() {
		if found[status] == 0 {
			t.Errorf("no event was %s", status)
		}
	}
}

// P12: a page of usage costs the same in a long log as in a short one, by any filter, on any page,
// with a tenant's key as with an operator's, and whatever the planner knows of the tenant.
func TestP12_PagesOfUsageDoNotGrowWithTheTenant(t *testing.T) {
	tier.AtSize(t)
	s := newSizeFixture(t)
	s.write(written{from: 100_000, events: 1000, run: 1000, rejects: 20, features: []string{"calls"}, vacuum: true}) // statistics of a small tenant
	s.write(written{events: 30_000, run: 1000, rejects: 500, features: []string{"calls", "calls", "bytes"}})
	s.write(written{from: 30_000, events: 30_000, run: 30_000, rejects: 500, features: []string{"calls", "calls", "bytes"}}) // an import
	s.reads.ListFor = time.Minute
	for key, viewer := range s.viewers() {
		for name, q := range map[string]audit.EventQuery{
			"first": {}, "deep": {After: "30000"}, "after the import": {After: "92000"}, "in its verdicts": {After: "122000"}, "feature": {Feature: "bytes"},
			"aggregated": {Status: projections.UsageAggregated}, "rejected": {Status: projections.UsageRejected}, "rejected, deep": {Status: projections.UsageRejected, After: "30000"},
			"dead letters": {Status: projections.UsageDeadLettered}, "pending": {Status: projections.UsagePending}, "validated": {Status: projections.UsageValidated},
			"times": {From: new(may), To: new(may.AddDate(0, 1, 0))},
		} {
			q.TenantID, q.Limit = s.tenant, 50
			want := 50
			if q.Status != "" && q.Status != projections.UsageAggregated && q.Status != projections.UsageRejected {
				want = 0
			}
			s.atMost(2500, name+" by a key of the "+key, func() {
				page, err := s.reads.UsageEvents(t.Context(), viewer, q)
				if err != nil || len(page.Data) != want || want == 0 && page.Next != "" {
					t.Errorf("%s: %d rows, next %q, %v", name, len(page.Data), page.Next, err)
				}
			})
		}
	}
}

func usageOf(d *history, r *audit.Receipt) (u events.Usage) {
	d.must(json.Unmarshal(r.Payload, &u))
	return u
}
