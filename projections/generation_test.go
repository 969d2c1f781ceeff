package projections_test

import (
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// A binary that lacks a generation's fold version does not start, and a running one
// folds no event by another version.
func TestP5_ABinaryHoldsEveryVersionInUse(t *testing.T) {
	y := newRebuildFixture(t)
	oldAll, oldConsumer := y.projections(), y.aggregating.Consumer
	y.must(projections.CheckVersions(t.Context(), y.pool, oldAll))
	y.versions(doubled, foldDoubled)
	tenant := y.tenants(1)[0]
	y.settle()
	y.built(commands.StartRebuild{})
	err := projections.CheckVersions(t.Context(), y.pool, oldAll)
	if err == nil {
		t.Error("a binary without the version would start")
	}
	t.Log(err)
	old, _ := y.runner(oldConsumer)
	y.append(usageEvent(tenant, "one", "calls", 1, may))
	y.drain(y.validating)
	if err := old.Process(t.Context(), y.topic(events.TopicUsageValidated, events.PartitionOf(tenant), 0)); err == nil {
		t.Error("it folded beside a generation that it cannot feed")
	}
	y.drain(y.aggregating)
	if got := y.amounts(tenant); got != "2026-05:1 " {
		t.Error(got)
	}
}
