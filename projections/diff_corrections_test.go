package projections_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// correctionEvent is a correction of the calls ref to an amount; nil: a retraction.
func correctionEvent(tenant uuid.UUID, id, ref string, amount *int64) events.Pending {
	c := events.Correction{EventID: id, Feature: "calls", Amount: amount, Timestamp: may, CorrectionRef: ref, Type: events.TypeCorrection}
	p := usageEvent(tenant, id, "calls", 1, may)
	p.Subject = events.UsageCorrected
	if amount == nil {
		p.Subject, c.Type = events.UsageRetracted, events.TypeRetraction
	}
	var err error
	if p.Payload, err = json.Marshal(c); err != nil {
		panic(err)
	}
	return p
}

// Corrections and retractions are recorded events with verdicts of their own.
func TestP3_EveryVerdictOnACorrectionIsInOnePlaceOfADifference(t *testing.T) {
	y := newDiffFixture(t)
	tenant, two := y.tenants(1)[0], int64(2)
	y.must(second(y.pool.Exec(t.Context(), `INSERT INTO tenants VALUES ($1, 'n', 'small', 'ACTIVE', now()) ON CONFLICT DO NOTHING`, tenant)))
	y.append(usageEvent(tenant, "a", "calls", 10, may), usageEvent(tenant, "b", "calls", 20, may), usageEvent(tenant, "no", "unknown", 20, may),
		correctionEvent(tenant, "c", "a", &two), correctionEvent(tenant, "r", "b", nil), correctionEvent(tenant, "late", "b", &two))
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
