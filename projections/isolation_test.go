package projections_test

import (
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// P9: every read shows a tenant its own rows only, even if another tenant of the
// same partition asks for them by name.
func TestP9_ReadsShowATenantOnlyItsOwn(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	neighbour := tenantIn(events.PartitionOf(tenant))
	s.subscribe(tenant, may, quota("calls", 10, domain.LimitHard, domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "good", "calls", 1, may), usageEvent(tenant, "bad", "unknown", 1, may))[0]
	s.append(conflict(tenant, "good", at, "other"))
	s.settle()
	letter := s.receipt(tenant, "bad").Rejected.DeadLetterID
	found := map[string]func(v query.Viewer) bool{
		"receipt": func(v query.Viewer) bool {
			_, err := s.reads.Receipt(t.Context(), v, tenant, "good", query.Wait{})
			return shown(t, err)
		},
		"usage events": func(v query.Viewer) bool {
			page, err := s.reads.UsageEvents(t.Context(), v, audit.EventQuery{TenantID: tenant, Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"aggregates": func(v query.Viewer) bool {
			page, err := s.reads.Aggregates(t.Context(), v, usage.AggregateQuery{TenantID: tenant, Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"conflicts": func(v query.Viewer) bool {
			page, err := s.reads.Conflicts(t.Context(), v, tenant, 10, "", query.Wait{})
			return shown(t, err) && len(page.Data) > 0
		},
		"check": func(v query.Viewer) bool {
			c, err := s.reads.Check(t.Context(), v, tenant, "calls", 1, query.Wait{})
			return shown(t, err) && (c.Allowed || c.Reason != entitlements.ReasonNoSubscription)
		},
		"entitlements": func(v query.Viewer) bool {
			list, err := s.reads.Entitlements(t.Context(), v, tenant, query.Wait{})
			return shown(t, err) && len(list.Data) > 0
		},
		"dead letters": func(v query.Viewer) bool {
			page, err := s.reads.DeadLetters(t.Context(), v, deadletters.DeadLetterQuery{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant}, Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"all dead letters": func(v query.Viewer) bool {
			page, err := s.reads.DeadLetters(t.Context(), v, deadletters.DeadLetterQuery{Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"dead letter": func(v query.Viewer) bool {
			_, err := s.reads.DeadLetter(t.Context(), v, letter)
			return shown(t, err)
		},
	}
	for name, read := range found {
		for _, v := range []query.Viewer{operator, tenantViewer(tenant)} {
			if !read(v) {
				t.Errorf("%s: %+v does not see it", name, v)
			}
		}
		for _, v := range []query.Viewer{tenantViewer(neighbour), tenantViewer(newID()), {}} {
			if read(v) {
				t.Errorf("%s: %+v sees another tenant's", name, v)
			}
		}
	}
}

func shown(t *testing.T, err error) bool {
	t.Helper()
	if err != nil && err != query.ErrNotFound {
		t.Error(err)
	}
	return err == nil
}
