package postgres

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
)

func TestP4_ConflictWithinABatchComesBeforePolicy(t *testing.T) {
	l, _, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	only := func(s commands.Submitted) commands.Submitted { s.ProbeOnly = true; return s }
	got := submit(t, l, tenant, only(usage(tenant, "a", 3)), usage(tenant, "a", 1), only(usage(tenant, "a", 2)), only(usage(tenant, "a", 1)), only(usage(tenant, "b", 1)))
	want := []commands.PlacementStatus{commands.Absent, commands.Appended, commands.Conflict, commands.Duplicate, commands.Absent}
	if !slices.Equal(statuses(got), want) {
		t.Errorf("%v, want %v", statuses(got), want)
	}
}
