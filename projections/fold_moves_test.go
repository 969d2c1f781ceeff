package projections_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/usage"
)

// moving is the fold v1, except that it counts the verdicts of one figure in another.
func moving(from, to usage.Key) usage.Fold {
	return func(e *events.Envelope) (usage.Key, usage.Delta, error) {
		key, delta, err := usage.FoldV1(e)
		if key.Feature == from.Feature && key.PeriodKey == from.PeriodKey {
			key.Feature, key.PeriodKey = to.Feature, to.PeriodKey
			if to.TenantID != uuid.Nil {
				key.TenantID = to.TenantID
			}
		}
		return key, delta, err
	}
}

// moves are the folds that a release must not have.
func moves() map[string]usage.Fold {
	june := usage.Key{Feature: "calls", PeriodKey: "2026-06"}
	return map[string]usage.Fold{
		"feature": moving(june, usage.Key{Feature: "moved", PeriodKey: "2026-06"}),
		"period":  moving(june, usage.Key{Feature: "calls", PeriodKey: "2026-05"}),
		"tenant":  moving(june, usage.Key{TenantID: newID(), Feature: "calls", PeriodKey: "2026-06"}),
	}
}

const movedReason = "counts the verdict in another figure"

// P5: a version of the fold that counts a verdict in another feature or period than the verdict names is
// refused: by a rebuild of all figures or of one period, and beside the live version.
func TestP5_ARebuildThatMovesAVerdictFails(t *testing.T) {
	for name, fold := range moves() {
		t.Run(name, func(t *testing.T) {
			y := newRebuildFixture(t)
			y.versions("usage_aggregates/moved", fold)
			tenant := y.tenants(1)[0]
			y.append(usageEvent(tenant, "a", "calls", 1, may))
			y.settle()
			aside := y.built(commands.StartRebuild{})
			y.append(usageEvent(tenant, "b", "calls", 2, may.AddDate(0, 1, 0)))
			y.settle()
			refusedWith(t, "generation_broken", y.promote(aside))
			_, err := y.rebuilds.Abandon(t.Context(), commands.Request{By: operatorKey}, aside.ID, "broken")
			y.must(err)
			for _, period := range []string{"", "2026-05"} {
				r := y.start(commands.StartRebuild{Projection: projections.ProjectionUsage, PeriodKey: period})
				y.whileRebuilding(func() { y.until(func() bool { return y.state(r) == domain.RebuildFailed }) }, y.rebuilder(5))
				now, err := y.rebuildStore().Rebuild(t.Context(), r.ID)
				if y.must(err); !strings.Contains(now.Failure, movedReason) {
					t.Errorf("period %q: the rebuild failed with %q", period, now.Failure)
				}
			}
			y.checkAmounts("the live one", map[uuid.UUID]string{tenant: "2026-06:2 2026-05:1 "})
		})
	}
}

// P12: the aggregator parks a verdict that its fold would count in another figure, and the figure of no
// other name has it.
func TestP12_AMovedVerdictIsParked(t *testing.T) {
	for name, fold := range moves() {
		t.Run(name, func(t *testing.T) {
			y := newRebuildFixture(t)
			y.folds.Usage = y.folds.Usage.With(usage.V1, fold)
			y.deploy()
			tenant := y.tenants(1)[0]
			y.append(usageEvent(tenant, "a", "calls", 1, may), usageEvent(tenant, "b", "calls", 2, may.AddDate(0, 1, 0)))
			y.settle()
			e, err := y.reads.Explain(t.Context(), tenantViewer(tenant), usage.ExplainQuery{TenantID: tenant, Feature: "calls", PeriodKey: "2026-06", Limit: 10, Rejected: true})
			if err != nil || !e.Adds || len(e.Data) != 0 || len(e.LeftOut) != 1 || e.LeftOut[0].Code != projections.CodeFoldFailed || !strings.Contains(e.LeftOut[0].Reason, movedReason) {
				t.Errorf("%+v %v", e, err)
			}
			y.checkAmounts("the live one", map[uuid.UUID]string{tenant: "2026-05:1 "})
		})
	}
}
