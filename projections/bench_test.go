package projections_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/consume"
)

// benchTenants spread over a few partitions, as one consumer of a group has them.
func benchTenants(n int) []uuid.UUID {
	tenants := make([]uuid.UUID, n)
	for i := range tenants {
		tenants[i] = tenantIn(int16(i % 4))
	}
	return tenants
}

// drain measures how fast a consumer applies b.N records in batches.
func (w *logFixture) drain(b *testing.B, r *consume.Runner, batch int) {
	var lanes [4][]events.Record
	for p := range lanes {
		lanes[p] = w.topic(r.Consumer.Topic, int16(p), 0)
	}
	b.ResetTimer()
	for done := 0; done < b.N; {
		var records []events.Record
		for p := range lanes {
			n := min(batch/len(lanes), len(lanes[p]))
			records, lanes[p] = append(records, lanes[p][:n]...), lanes[p][n:]
		}
		w.must(r.Process(context.Background(), records))
		done += len(records)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkAggregator1000(b *testing.B) {
	w := newLogFixture(b)
	tenants := benchTenants(40)
	for sent := 0; sent < b.N; sent += 1000 {
		var pending []events.Pending
		for i := range min(1000, b.N-sent) {
			pending = append(pending, verdict(tenants[i%len(tenants)], fmt.Sprint("feature-", i%5), 3))
		}
		w.append(pending...)
	}
	r, _ := w.aggregator(nil)
	w.drain(b, r, 1000)
}

func benchmarkValidator(b *testing.B, batch int) {
	w := newLogFixture(b)
	tenants := benchTenants(40)
	for _, tenant := range tenants {
		w.subscribe(tenant, may, grant("calls", domain.ResetMonthly), grant("bytes", domain.ResetMonthly), grant("seats", domain.ResetNever))
	}
	for sent := 0; sent < b.N; sent += 1000 {
		var pending []events.Pending
		for i := range min(1000, b.N-sent) {
			pending = append(pending, usageEvent(tenants[i%len(tenants)], fmt.Sprint(sent+i), "calls", 3, may))
		}
		w.append(pending...)
	}
	r, _ := w.validator()
	w.drain(b, r, batch)
}

func BenchmarkValidator1000(b *testing.B) { benchmarkValidator(b, 1000) }
func BenchmarkValidator200(b *testing.B)  { benchmarkValidator(b, 200) }
