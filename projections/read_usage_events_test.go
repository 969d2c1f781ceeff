package projections_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
)

// listed are the ids of all pages of a list of usage events.
func (s *pipelineFixture) listed(tenant uuid.UUID, q audit.EventQuery) (ids []string, pages int) {
	s.Helper()
	for q.TenantID, q.Limit = tenant, 10; ; {
		page, err := s.reads.UsageEvents(context.Background(), tenantViewer(tenant), q)
		s.must(err)
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
	s := newPipelineFixture(t)
	tenant := newID()
	s.append(usageEvent(tenant, "zero", "rare", 1, may), usageEvent(tenant, "below", "calls", 1, may), usageEvent(tenant, "floor", "rare", 1, may))
	s.must(second(s.pool.Exec(t.Context(), `UPDATE log_heads SET position = position + 19998 WHERE partition = $1`, events.PartitionOf(tenant))))
	if at := s.append(usageEvent(tenant, "last", "calls", 1, may))[0].Number; at != 20002 {
		t.Fatalf("the last event is at %d", at)
	}
	if ids, pages := s.listed(tenant, audit.EventQuery{}); !slices.Equal(ids, []string{"last", "floor", "below", "zero"}) || pages != 1 {
		t.Errorf("on %d pages are listed %q", pages, ids)
	}
	if ids, _ := s.listed(tenant, audit.EventQuery{Feature: "rare"}); !slices.Equal(ids, []string{"floor", "zero"}) {
		t.Errorf("of a feature are listed %q", ids)
	}
}

// A page ends when its time is over. Later usage is on the next page, even if this page
// is empty.
func TestAPageOfUsageEndsInTime(t *testing.T) {
	s := newPipelineFixture(t)
	s.reads.ListFor = time.Nanosecond
	tenant := newID()
	s.append(usageEvent(tenant, "zero", "rare", 1, may), usageEvent(tenant, "floor", "rare", 1, may))
	others := make([]events.Pending, 7000) // more than one statement walks
	for i := range others {
		others[i] = usageEvent(tenant, fmt.Sprint("other ", i), "calls", 1, may)
	}
	s.append(others...)
	if ids, pages := s.listed(tenant, audit.EventQuery{Feature: "rare"}); !slices.Equal(ids, []string{"floor", "zero"}) || pages < 2 {
		t.Errorf("behind an empty page, on %d pages, are listed %q", pages, ids)
	}
	// Each page looks at two events, of which one is rejected.
	mixed := newID()
	s.subscribe(mixed, may, grant("calls", domain.ResetMonthly))
	for i := range 10 {
		s.append(usageEvent(mixed, fmt.Sprint(i), []string{"unknown", "calls"}[i%2], 1, may))
	}
	s.settle()
	var ids []string
	q := audit.EventQuery{TenantID: mixed, Status: projections.UsageAggregated, Limit: 1}
	for more := true; more; more = q.After != "" {
		page, err := s.reads.UsageEvents(t.Context(), tenantViewer(mixed), q)
		s.must(err)
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
	s := newPipelineFixture(t)
	s.reads.ListFor = time.Nanosecond
	tenant := newID()
	batch := []events.Pending{usageEvent(tenant, "rare", "rare", 1, may)}
	for i := range 11 { // as many as one statement reads for a page of ten
		batch = append(batch, usageEvent(tenant, fmt.Sprint("unknown ", i), "unknown", 1, may))
	}
	s.append(batch...)
	s.settle()
	if ids, pages := s.listed(tenant, audit.EventQuery{Feature: "rare", Status: projections.UsageRejected}); !slices.Equal(ids, []string{"rare"}) || pages < 2 {
		t.Errorf("on %d pages of rejections are listed %q", pages, ids)
	}
}

// The keys of the effects of position 1 begin like those of 10 to 19.
func TestReceiptsOfSimilarPositionsAreDistinct(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	if at := s.append(usageEvent(tenant, "first", "calls", 1, may))[0].Number; at != 1 {
		t.Fatalf("the first event is at %d", at)
	}
	s.settle()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	for i := range 12 {
		s.append(usageEvent(tenant, fmt.Sprint("unknown ", i), "unknown", 1, may))
	}
	s.settle()
	const code = "no_active_subscription"
	if got := s.receipt(tenant, "first"); got.Rejected == nil || got.Rejected.Code != code {
		t.Errorf("the receipt of the first event says %+v", got.Rejected)
	}
	page, err := s.reads.UsageEvents(t.Context(), tenantViewer(tenant), audit.EventQuery{TenantID: tenant, Limit: 100})
	s.must(err)
	if first := page.Data[len(page.Data)-1]; first.EventID != "first" || first.Code != code {
		t.Errorf("the first event is listed as %+v", first)
	}
}
