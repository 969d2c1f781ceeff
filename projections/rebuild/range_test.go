package rebuild_test

import (
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
)

// P5: a rebuild of one tenant reads each event of its partition once, whatever the planner knows of the tenant and its partition: not all
// of the tenant's for each chunk, and not the whole chunk for each batch.
func TestP5_ARebuildOfATenantReadsItsPartitionOnce(t *testing.T) {
	s := NewSized(t)
	y := RebuildsOf(s.Pipeline)
	s.Write(Written{Others: 5, Events: 2000, Run: 1000, Rejects: 20, Features: []string{"calls"}, Vacuum: true})
	s.Write(Written{Events: 2000, Run: 1000, Rejects: 20, Features: []string{"calls"}})
	s.Must(Second(s.Pool.Exec(t.Context(), `INSERT INTO tenants VALUES ($1, 'n', 'small', 'ACTIVE', now()) ON CONFLICT DO NOTHING`,
		s.Tenant)))
	for name, chunk := range map[string]int64{projections.ProjectionUsage: 400, projections.ProjectionDeadLetters: 4000} {
		b := y.Rebuilder(chunk)
		b.Pool, b.Join = s.Counted, 100
		p, err := projections.Find(b.Projections, name)
		s.Must(err)
		p.Consumer.MaxPerPartition = 10 // dead letters in a batch
		s.AtMost(16_000, name, func() { // 4,000 events, and their entries in the index
			r := y.Start(repair.StartRebuild{Projection: name, TenantID: s.Tenant})
			b.Work(t.Context(), &p.Consumer, r, "test")
			_, err := y.Commands.Abandon(t.Context(), commands.Request{By: OperatorKey}, r.ID, "next")
			s.Must(err)
		})
	}
}
