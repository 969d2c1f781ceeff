package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
)

// listed are the ids of all pages of a list of usage events.
func listed(s *Pipeline, tenant uuid.UUID, q audit.EventQuery) (ids []string, pages int) {
	s.Helper()
	for q.TenantID, q.Limit = tenant, 10; ; {
		page, err := s.Reads.UsageEvents(context.Background(), TenantViewer(tenant), q)
		s.Must(err)
		for _, row := range page.Data {
			ids = append(ids, row.EventID)
		}
		pages++
		if q.After = page.Next; q.After == "" {
			return ids, pages
		}
	}
}

// A page skips events that are not usage, however many there are.
func TestSparseUsageEventsAreListed(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Append(Usage(tenant, "zero", "rare", 1, May), Usage(tenant, "below", "calls", 1, May), Usage(tenant, "floor", "rare", 1, May))
	s.Must(Second(s.Pool.Exec(t.Context(), `UPDATE log_heads SET position = position + 19998 WHERE partition = $1`,
		events.PartitionOf(tenant))))
	if at := s.Append(Usage(tenant, "last", "calls", 1, May))[0].Number; at != 20002 {
		t.Fatalf("the last event is at %d", at)
	}
	if ids, pages := listed(s, tenant, audit.EventQuery{}); !slices.Equal(ids, []string{"last", "floor", "below", "zero"}) || pages != 1 {
		t.Errorf("on %d pages are listed %q", pages, ids)
	}
	if ids, _ := listed(s, tenant, audit.EventQuery{Feature: "rare"}); !slices.Equal(ids, []string{"floor", "zero"}) {
		t.Errorf("of a feature are listed %q", ids)
	}
}

// A page ends when its time is over. Later usage is on the next page, even if this page
// is empty.
func TestAPageOfUsageEndsInTime(t *testing.T) {
	s := NewPipeline(t)
	s.Reads.ListFor = time.Nanosecond
	tenant := NewID()
	s.Append(Usage(tenant, "zero", "rare", 1, May), Usage(tenant, "floor", "rare", 1, May))
	others := make([]events.Pending, 7000) // more than one statement walks
	for i := range others {
		others[i] = Usage(tenant, fmt.Sprint("other ", i), "calls", 1, May)
	}
	s.Append(others...)
	if ids, pages := listed(s, tenant, audit.EventQuery{Feature: "rare"}); !slices.Equal(ids, []string{"floor", "zero"}) || pages < 2 {
		t.Errorf("behind an empty page, on %d pages, are listed %q", pages, ids)
	}
	// Each page looks at two events, of which one is rejected.
	mixed := NewID()
	s.Subscribe(mixed, May, Grant("calls", domain.ResetMonthly))
	for i := range 10 {
		s.Append(Usage(mixed, fmt.Sprint(i), []string{"unknown", "calls"}[i%2], 1, May))
	}
	s.Settle()
	var ids []string
	q := audit.EventQuery{TenantID: mixed, Status: projections.UsageAggregated, Limit: 1}
	for more := true; more; more = q.After != "" {
		page, err := s.Reads.UsageEvents(t.Context(), TenantViewer(mixed), q)
		s.Must(err)
		for _, u := range page.Data {
			ids = append(ids, u.EventID)
		}
		q.After = page.Next
	}
	if !slices.Equal(ids, []string{"9", "7", "5", "3", "1"}) {
		t.Errorf("by pages that end in time are listed %q", ids)
	}
}

// A page of rejections that ends in time misses no event: the next one begins right behind it.
func TestAPageOfRejectionsEndsInTime(t *testing.T) {
	s := NewPipeline(t)
	s.Reads.ListFor = time.Nanosecond
	tenant := NewID()
	batch := []events.Pending{Usage(tenant, "rare", "rare", 1, May)}
	for i := range 11 { // as many as one statement reads for a page of ten
		batch = append(batch, Usage(tenant, fmt.Sprint("unknown ", i), "unknown", 1, May))
	}
	s.Append(batch...)
	s.Settle()
	if ids, pages := listed(s, tenant, audit.EventQuery{Feature: "rare", Status: projections.UsageRejected}); !slices.Equal(ids,
		[]string{"rare"}) || pages < 2 {
		t.Errorf("on %d pages of rejections are listed %q", pages, ids)
	}
}

// The keys of the effects of position 1 begin like those of 10 to 19.
func TestReceiptsOfSimilarPositionsAreDistinct(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	if at := s.Append(Usage(tenant, "first", "calls", 1, May))[0].Number; at != 1 {
		t.Fatalf("the first event is at %d", at)
	}
	s.Settle()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	for i := range 12 {
		s.Append(Usage(tenant, fmt.Sprint("unknown ", i), "unknown", 1, May))
	}
	s.Settle()
	const code = "no_active_subscription"
	if got := s.Receipt(tenant, "first"); got.Rejected == nil || got.Rejected.Code != code {
		t.Errorf("the receipt of the first event says %+v", got.Rejected)
	}
	page, err := s.Reads.UsageEvents(t.Context(), TenantViewer(tenant), audit.EventQuery{TenantID: tenant, Limit: 100})
	s.Must(err)
	if first := page.Data[len(page.Data)-1]; first.EventID != "first" || first.Code != code {
		t.Errorf("the first event is listed as %+v", first)
	}
}

// usageStates are all states of recorded usage.
func usageStates() []string {
	return []string{projections.UsagePending, projections.UsageValidated, projections.UsageAggregated, projections.UsageRejected,
		projections.UsageDeadLettered}
}

// checkLists holds the lists of the tenant's usage, by each filter, against the receipts of all of
// its events.
func checkLists(d *History, rt *rapid.T, found map[string]int) {
	own, _ := d.ReadAll()
	var all []audit.Receipt
	for i := range own {
		if own[i].Subject == events.UsageRecorded {
			all = append(all, d.Receipt(d.Tenant, own[i].DedupeKey[len("u/"):]))
		}
	}
	slices.Reverse(all)
	filters := []audit.EventQuery{{}, {Feature: "calls"}, {Feature: "unknown"}, {From: new(May), To: new(May.AddDate(0, 1, 0))},
		{From: new(May.Add(time.Hour)), Feature: "calls"}}
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
		d.Reads.ListFor = rapid.SampledFrom([]time.Duration{time.Nanosecond, 0}).Draw(rt, "for")
		q.TenantID, q.Limit, q.After = d.Tenant, rapid.IntRange(1, 5).Draw(rt, "limit"), ""
		var got []string
		for {
			page, err := d.Reads.UsageEvents(context.Background(), rapid.SampledFrom([]query.Viewer{TenantViewer(d.Tenant), Operator}).
				Draw(rt, "viewer"), q)
			d.Must(err)
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
	s := NewPipeline(t)
	found := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		d := NewHistory(s)
		d.AddFailures()
		for range rapid.IntRange(2, 14).Draw(rt, "steps") {
			d.AddStep(rt)
		}
		if rapid.Bool().Draw(rt, "all are validated") { // few histories end so by themselves
			d.ReadAtMost(d.Validating, d.Partition, 100)
		}
		checkLists(d, rt, found)
		d.Rest()
		checkLists(d, rt, found)
	})
	for _, status := range usageStates() {
		if found[status] == 0 {
			t.Errorf("no event was %s", status)
		}
	}
}

func usageOf(d *History, r *audit.Receipt) (u events.Usage) {
	d.Must(json.Unmarshal(r.Payload, &u))
	return u
}
