package projections_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/usage"
)

// P12: a figure as of a position is of the generation that readers see: after a promotion its
// running totals are those that the rebuild wrote, after a rollback the earlier ones.
func TestP12_FiguresOfThePastAreOfTheLiveGeneration(t *testing.T) {
	y := newRebuildFixture(t)
	y.versions(doubled, foldDoubled)
	tenants := y.tenants(2)
	amount := map[uuid.UUID]map[int64]int64{tenants[0]: {}, tenants[1]: {}}
	var total [2]int64
	for i := range tier.Histories(t, 16, 40) {
		which := i % 2
		y.append(usageEvent(tenants[which], fmt.Sprint("e", i), "calls", int64(i+1), may))
		total[which] += int64(i + 1)
		amount[tenants[which]][y.head(tenants[which]).Number] = total[which]
		if i%7 == 0 {
			y.settle()
		}
	}
	y.settle()
	y.checkPast("before", amount, 1)
	y.totalsWritten(1)
	r := y.built(commands.StartRebuild{})
	y.checkPast("rebuilt beside it", amount, 1)
	y.totalsWritten(r.Generation)
	y.must(y.promote(r))
	y.checkPast("promoted", amount, 2)
	y.must(y.rollBack(r))
	y.checkPast("rolled back", amount, 1)
}

// checkPast reads the figure at each position at which its amount is known, times the fold's factor.
func (y *rebuildFixture) checkPast(when string, known map[uuid.UUID]map[int64]int64, factor int64) {
	y.Helper()
	for tenant, amounts := range known {
		for number, amount := range amounts {
			at := events.Position{Partition: events.PartitionOf(tenant), Number: number}
			for _, feature := range []string{"calls", ""} {
				page, err := y.reads.AggregatesAsOf(y.Context(), tenantViewer(tenant), usage.AggregateQuery{TenantID: tenant, Feature: feature, Limit: 10}, usage.AsOf{Position: &at})
				if err != nil || len(page.Data) != 1 || page.Data[0].Amount.String() != fmt.Sprint(amount*factor) {
					y.Errorf("%s, as of %s: %+v %v, want %d", when, at, page.Data, err, amount*factor)
				}
			}
		}
	}
}

// totalsWritten fails if a generation has no running totals before the last position.
func (y *rebuildFixture) totalsWritten(generation int) {
	y.Helper()
	var n int
	y.must(y.pool.QueryRow(y.Context(), `SELECT count(*) FROM usage_running_totals WHERE generation = $1`, generation).Scan(&n))
	if n < 2 {
		y.Errorf("generation %d has %d running totals", generation, n)
	}
}
