package projections_test

import (
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// Corrections and retractions are recorded events with verdicts of their own.
func TestP3_EveryVerdictOnACorrectionIsInOnePlaceOfADifference(t *testing.T) {
	y := newDiffFixture(t)
	tenant := y.tenants(1)[0]
	y.must(second(y.pool.Exec(t.Context(), `INSERT INTO tenants VALUES ($1, 'n', 'small', 'ACTIVE', now()) ON CONFLICT DO NOTHING`, tenant)))
	y.append(usageEvent(tenant, "a", "calls", 10, may), usageEvent(tenant, "b", "calls", 20, may), usageEvent(tenant, "no", "unknown", 20, may),
		correction(tenant, "c", "calls", "a", 2).Pending, correction(tenant, "r", "calls", "b", -1).Pending, correction(tenant, "late", "calls", "b", 2).Pending)
	y.settle()
	r := y.rebuilt(commands.StartRebuild{Projection: projections.ProjectionUsage})
	d := y.diff(rebuild.DiffQuery{RebuildID: r.ID, Totals: true, All: true})
	if k := d.Conservation; !k.Holds || k.Verdicts != 4 || k.Counted != 4 || *k.Recorded != 6 || *k.Validated != 4 || *k.Rejected != 2 || *k.Undecided != 0 {
		t.Errorf("%+v", k)
	}
	if len(d.Data) != 1 || string(d.Data[0].Live) != "2" || *d.Data[0].EventCount != 1 {
		t.Errorf("%+v", d.Data)
	}
}
