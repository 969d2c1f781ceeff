package store

import (
	"slices"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// Each request of long work starts its worker; a bulk needs no worker, because each of its retries is a command.
func TestTheCommandRouterStartsTheWorkersOfRequests(t *testing.T) {
	var started []string
	start := func(worker string) func() { return func() { started = append(started, worker) } }
	c := &Commands{Workers: map[events.Subject]func(){
		events.RebuildRequested: start("rebuild"), events.ReplayRequested: start("replay"),
	}}
	batch := []events.Envelope{{Subject: events.ReplayRequested}, {Subject: events.BulkRequested}, {Subject: events.RebuildRequested}, {Subject: events.RebuildRequested}}
	result, err := c.Apply(t.Context(), nil, projections.Generation{}, batch)
	if err != nil || len(result.Failed)+len(result.FollowUps) != 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	if want := []string{"replay", "rebuild", "rebuild"}; !slices.Equal(started, want) {
		t.Errorf("started %q, want %q", started, want)
	}
}
