package projections_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

// nothingInMay is a fold that counts no usage in one period: e.g., usage that must not be billed.
const nothingInMay = projections.ProjectionUsage + "/nothing-in-may"

func foldNothingInMay(e *events.Envelope) (usage.Key, usage.Delta, error) {
	key, d, err := usage.FoldV1(e)
	if key.PeriodKey == "2026-05" {
		d.Amount, d.Count = 0, 0
	}
	return key, d, err
}

// P5: a fold that counts no usage in a period, promoted for that period alone, empties it for every reader:
// no reader falls back to the figures that were live before. Later events are folded by it, too.
func TestP5_APeriodEmptiedByItsFoldStaysEmpty(t *testing.T) {
	y := newRebuildFixture(t)
	y.versions(nothingInMay, foldNothingInMay)
	all := y.tenants(2)
	a, b := all[0], all[1]
	for i, tenant := range []uuid.UUID{a, a, b} {
		y.append(usageEvent(tenant, fmt.Sprint("s", i), "calls", 10, may.AddDate(0, i%2, 0)))
	}
	y.settle()
	before := y.head(a)
	r := y.built(commands.StartRebuild{PeriodKey: "2026-05"})
	diff := y.diff(rebuild.DiffQuery{RebuildID: r.ID, All: true, Totals: true})
	if len(diff.Data) != 2 || diff.Totals.Live.String() != "20" || diff.Totals.Rebuilt.String() != "0" {
		t.Errorf("the diff: %+v, %+v", diff.Data, diff.Totals)
	}
	for _, row := range diff.Data {
		if string(row.Live) != "10" || string(row.Rebuilt) != "0" || *row.EventCount != 0 || *row.LiveEventCount != 1 || *row.PeriodKey != "2026-05" {
			t.Errorf("a row of the diff: %+v", row)
		}
	}
	y.must(y.promote(r))
	empty := map[uuid.UUID]string{a: "2026-06:10 2026-05:0 ", b: "2026-05:0 "}
	y.checkAmounts("promoted", empty)
	y.append(usageEvent(a, "later", "calls", 7, may), usageEvent(b, "later", "calls", 7, may))
	y.settle()
	y.checkAmounts("after later usage", empty)
	now := y.head(a)
	for _, at := range []*events.Position{&before, &now} {
		page, err := y.reads.AggregatesAsOf(context.Background(), tenantViewer(a), usage.AggregateQuery{TenantID: a, Feature: "calls", PeriodKey: "2026-05", Limit: 10}, usage.AsOf{Position: at})
		y.must(err)
		if len(page.Data) > 1 || len(page.Data) == 1 && (page.Data[0].Amount.String() != "0" || page.Data[0].EventCount != 0) {
			t.Errorf("as of %s: %+v", at, page.Data)
		}
	}
	e, err := y.reads.Explain(context.Background(), tenantViewer(a), usage.ExplainQuery{TenantID: a, Feature: "calls", PeriodKey: "2026-05", Limit: 10})
	y.must(err)
	if e.Total.String() != "0" || e.EventCount != 0 || !e.Adds {
		t.Errorf("explained as %+v", e)
	}
	y.must(y.rollBack(r))
	y.checkAmounts("rolled back", map[uuid.UUID]string{a: "2026-06:10 2026-05:17 ", b: "2026-05:17 "})
}
