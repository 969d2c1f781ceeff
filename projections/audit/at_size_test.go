package audit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// P12: reads of one event cost the same in a long log as in a short one, with a tenant's key as
// with an operator's.
func TestP12_ReadsOfOneEventDoNotGrowWithTheTenant(t *testing.T) {
	tier.AtSize(t)
	s := NewSized(t)
	s.Write(Written{Events: 60_000, Run: 1000, Rejects: 20, Features: []string{"calls"}})
	for key, viewer := range s.Viewers() {
		for _, id := range []string{"e-30000", "e-30019"} { // one of them is rejected
			s.AtMost(500, "a receipt by a key of the "+key, func() {
				r, err := s.Reads.Receipt(t.Context(), viewer, s.Tenant, id, query.Wait{})
				if err != nil || r.Validated == nil && r.Rejected == nil {
					t.Errorf("%s: %+v %v", id, r, err)
				}
			})
			at := s.Receipt(s.Tenant, id).Recorded.Position
			s.AtMost(2*2000+500, "a lineage by a key of the "+key, func() {
				l, err := s.Reads.Lineage(t.Context(), viewer, audit.LineageQuery{Ref: audit.EventRef{Position: &at}, TenantID: &s.Tenant,
					Span: 1000})
				if err != nil || len(l.Nodes) != 2 {
					t.Errorf("%s: %+v %v", id, l, err)
				}
			})
			s.AtMost(500, "a stream by a key of the "+key, func() {
				page, err := s.Reads.Events(t.Context(), viewer,
					audit.LogQuery{EventFilter: audit.EventFilter{TenantID: &s.Tenant, Stream: audit.Stream{Kind: "usage", ID: id}},
						Limit: 100})
				if err != nil || len(page.Data) != 2 || page.Next != nil || page.Data[1].Subject == events.UsageRecorded {
					t.Errorf("%s: %+v %v", id, page, err)
				}
			})
		}
	}
}

// P12: a page of usage costs the same in a long log as in a short one, by any filter, on any page,
// with a tenant's key as with an operator's, and whatever the planner knows of the tenant.
func TestP12_PagesOfUsageDoNotGrowWithTheTenant(t *testing.T) {
	tier.AtSize(t)
	s := NewSized(t)
	// statistics of a small tenant
	s.Write(Written{From: 100_000, Events: 1000, Run: 1000, Rejects: 20, Features: []string{"calls"}, Vacuum: true})
	s.Write(Written{Events: 30_000, Run: 1000, Rejects: 500, Features: []string{"calls", "calls", "bytes"}})
	s.Write(Written{From: 30_000, Events: 30_000, Run: 30_000, Rejects: 500, Features: []string{"calls", "calls", "bytes"}}) // an import
	s.Reads.ListFor = time.Minute
	for key, viewer := range s.Viewers() {
		for name, q := range map[string]audit.EventQuery{
			"first": {}, "deep": {After: "30000"}, "after the import": {After: "92000"}, "in its verdicts": {After: "122000"},
			"feature":    {Feature: "bytes"},
			"aggregated": {Status: projections.UsageAggregated}, "rejected": {Status: projections.UsageRejected},
			"rejected, deep": {Status: projections.UsageRejected, After: "30000"},
			"dead letters":   {Status: projections.UsageDeadLettered}, "pending": {Status: projections.UsagePending},
			"validated": {Status: projections.UsageValidated},
			"times":     {From: new(May), To: new(May.AddDate(0, 1, 0))},
		} {
			q.TenantID, q.Limit = s.Tenant, 50
			want := 50
			if q.Status != "" && q.Status != projections.UsageAggregated && q.Status != projections.UsageRejected {
				want = 0
			}
			s.AtMost(2500, name+" by a key of the "+key, func() {
				page, err := s.Reads.UsageEvents(t.Context(), viewer, q)
				if err != nil || len(page.Data) != want || want == 0 && page.Next != "" {
					t.Errorf("%s: %d rows, next %q, %v", name, len(page.Data), page.Next, err)
				}
			})
		}
	}
}

// P12: reads by keys cost the same where the planner does not know the tenant, nor its partition: it then takes a partition of any size for
// one row, and reading it whole for as cheap as a look-up of a key.
func TestP12_ReadsByKeysDoNotReadAnUnknownPartition(t *testing.T) {
	s := NewSized(t)
	s.Write(Written{Others: 5, Events: 2000, Run: 1000, Rejects: 20, Features: []string{"calls"}, Vacuum: true})
	s.Write(Written{Events: 2000, Run: 1000, Rejects: 20, Features: []string{"calls"}})
	for key, viewer := range s.Viewers() {
		for name, read := range readsByKeys(s, viewer) {
			s.AtMost(1500, name+" by a key of the "+key, func() {
				if err := read(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	s.Write(Written{From: 2000, Events: 10, Run: 10, Rejects: 1 << 30, Features: []string{"rare"}})
	at := s.Head(s.Tenant) // its cut is between the events and their verdicts, which retries may have caused
	at.Number -= 10
	owner, err := pgx.Connect(t.Context(), s.URL)
	s.Must(err)
	s.Must(Second(owner.Exec(t.Context(), `UPDATE event_log_rows SET causation_id = event_id WHERE partition = $1 AND position > $2`,
		at.Partition, at.Number)))
	s.Must(owner.Close(t.Context()))
	s.Write(Written{From: 3000, Events: 1000, Run: 1000, Rejects: 1, Features: []string{"calls"}})
	for key, viewer := range s.Viewers() {
		s.AtMost(600, "an explanation beside many rejections by a key of the "+key, func() {
			q := usage.ExplainQuery{TenantID: s.Tenant, Feature: "rare", PeriodKey: "2026-05", Limit: 50, AsOf: &usage.AsOf{Position: &at}}
			if e, err := s.Reads.Explain(s.Context(), viewer, q); err != nil || len(e.Data) != 10 {
				t.Errorf("%d events, %v", len(e.Data), err)
			}
		})
	}
}

// readsByKeys are the reads that find events by their keys, or by a range of keys.
func readsByKeys(s *Sized, viewer query.Viewer) map[string]func() error {
	reads := map[string]func() error{
		"conflicts": func() error {
			_, err := s.Reads.Conflicts(s.Context(), viewer, s.Tenant, 100, "", query.Wait{})
			return err
		},
		"a stream": func() error {
			stream := audit.EventFilter{TenantID: &s.Tenant, Stream: audit.Stream{Kind: "usage", ID: "e-1019"}}
			_, err := s.Reads.Events(s.Context(), viewer, audit.LogQuery{EventFilter: stream, Limit: 100})
			return err
		},
	}
	for _, status := range []string{"", projections.UsageAggregated, projections.UsageRejected, projections.UsageDeadLettered,
		projections.UsagePending, projections.UsageValidated} {
		reads["a page of usage "+status] = func() error {
			_, err := s.Reads.UsageEvents(s.Context(), viewer, audit.EventQuery{TenantID: s.Tenant, Limit: 50, Status: status})
			return err
		}
	}
	for _, id := range []string{"e-1000", "e-1019"} {
		reads["the receipt of "+id] = func() error {
			_, err := s.Reads.Receipt(s.Context(), viewer, s.Tenant, id, query.Wait{})
			return err
		}
	}
	for _, id := range []string{"e-1000", "e-1019"} {
		at := s.Receipt(s.Tenant, id).Recorded.Position
		reads["the lineage of "+id] = func() error {
			_, err := s.Reads.Lineage(s.Context(), viewer, audit.LineageQuery{Ref: audit.EventRef{Position: &at}, TenantID: &s.Tenant,
				Span: 100})
			return err
		}
	}
	for _, as := range []*usage.AsOf{nil, {Position: new(s.Head(s.Tenant))}} {
		reads[fmt.Sprint("what is left out, as of ", as)] = func() error {
			q := usage.ExplainQuery{TenantID: s.Tenant, Feature: "other", PeriodKey: "2026-05", Limit: 50, AsOf: as, Rejected: true}
			_, err := s.Reads.Explain(s.Context(), viewer, q)
			return err
		}
	}
	return reads
}
