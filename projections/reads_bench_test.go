package projections_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// fillPartition is a partition with many events of a tenant, every third rejected, between
// those of a neighbour.
func fillPartition(b *testing.B, n int) (*pipelineFixture, uuid.UUID) {
	s := newPipelineFixture(b)
	tenant := newID()
	neighbour := tenantIn(events.PartitionOf(tenant))
	s.subscribe(tenant, may, quota("calls", 10, domain.LimitSoft, domain.ResetMonthly))
	s.subscribe(neighbour, may, grant("calls", domain.ResetMonthly))
	for i := 0; i < n; i += 1000 {
		batch := make([]events.Pending, 1000)
		for j := range batch {
			batch[j] = usageEvent([]uuid.UUID{tenant, neighbour}[j%2], fmt.Sprint("e", i+j), []string{"calls", "calls", "unknown"}[j%3], 1, may)
		}
		s.append(batch...)
	}
	s.settle()
	return s, tenant
}

func BenchmarkReads(b *testing.B) {
	s, tenant := fillPartition(b, 20_000)
	ctx := context.Background()
	reads := []struct {
		name string
		do   func() error
	}{
		{"check", func() error {
			return second(s.reads.Check(ctx, tenantViewer(tenant), tenant, "calls", 1, query.Wait{}))
		}},
		{"receipt", func() error {
			return second(s.reads.Receipt(ctx, tenantViewer(tenant), tenant, "e10000", query.Wait{}))
		}},
		{"usage events", func() error {
			return second(s.reads.UsageEvents(ctx, tenantViewer(tenant), audit.EventQuery{TenantID: tenant, Limit: 100}))
		}},
		{"usage events of a rare status", func() error {
			return second(s.reads.UsageEvents(ctx, tenantViewer(tenant), audit.EventQuery{TenantID: tenant, Limit: 100, Status: projections.UsagePending, After: "20000"}))
		}},
		{"dead letters", func() error {
			return second(s.reads.DeadLetters(ctx, operator, deadletters.DeadLetterQuery{Limit: 100}))
		}},
		{"aggregates", func() error {
			return second(s.reads.Aggregates(ctx, tenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Limit: 100}))
		}},
		{"identity", func() error { return second(s.reads.Identity(ctx)) }},
	}
	for _, behind := range []string{"caught up", "behind"} {
		if behind == "behind" { // a neighbour's backlog that has to be scanned
			_, err := s.pool.Exec(ctx, `UPDATE consumer_checkpoints SET position = 1000 WHERE partition = $1 AND position > 1000`, events.PartitionOf(tenant))
			s.must(err)
		}
		for _, r := range reads {
			b.Run(r.name+"/"+behind, func(b *testing.B) {
				for b.Loop() {
					s.must(r.do())
				}
			})
		}
	}
}
