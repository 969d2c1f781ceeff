package domain

import (
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

func TestGenerationsThatCannotBeShown(t *testing.T) {
	whole, tenant := events.Partitions, uuid.New()
	live := Generation{Number: 1, Visible: true, Fed: whole}
	for name, c := range map[string]struct {
		generation Generation
		why        string // "": it can be shown
	}{
		"fed":                  {Generation{Number: 2, Fed: whole}, ""},
		"fed in its partition": {Generation{Number: 2, TenantID: tenant, Fed: 1}, ""},
		"not fed everywhere":   {Generation{Number: 2, Fed: whole - 1}, "generation 2: it is not fed in every partition"},
		"not fed in its own":   {Generation{Number: 2, TenantID: tenant}, "generation 2: it is not fed in every partition"},
		"dropped":              {Generation{Number: 2, Dropped: true}, "generation 2: it was dropped"},
		"broken, then dropped": {Generation{Number: 2, Broken: "position 7: no such period", Dropped: true},
			"generation 2: position 7: no such period"},
		"broken, but fed so far": {Generation{Number: 2, Broken: "position 7", Fed: whole}, "generation 2: position 7"},
		"a tenant's, broken":     {Generation{Number: 2, TenantID: tenant, Broken: "position 7", Fed: 1}, "generation 2: position 7"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Rebuild{Generation: 2}
			wantRefusal(t, r.Showable([]Generation{live, c.generation}, false), "generation_broken", c.why)
			// Only visible generations stand in the way of a rollback.
			if no := r.Restorable([]Generation{live, c.generation}); no != nil {
				t.Errorf("an invisible generation: %v", no)
			}
			c.generation.Visible = true
			wantRefusal(t, r.Restorable([]Generation{live, c.generation}), "rollback_expired", c.why)
		})
	}
}

func TestAPeriodMustKeepItsEvents(t *testing.T) {
	r := Rebuild{Generation: 2, PeriodKey: "2026-05"}
	fed := Generation{Number: 2, Fed: events.Partitions}
	wantRefusal(t, r.Showable([]Generation{fed}, true), "period_not_conserved", "Rebuild all periods")
	wantRefusal(t, r.Showable([]Generation{{Number: 2}}, true), "generation_broken", "generation 2")
}

func TestACoveredPromotionStays(t *testing.T) {
	var r Rebuild
	wantRefusal(t, r.Uncovered(true), "rebuild_superseded", "roll that one back first")
	wantRefusal(t, r.Uncovered(false), "", "")
}

func TestTheFoldOfAScope(t *testing.T) {
	for _, versions := range [][]string{nil, {"v1", "v2"}} {
		_, no := FoldOf(versions)
		wantRefusal(t, no, "scope_mixed", "verify each tenant or period")
	}
	if version, no := FoldOf([]string{"v1"}); version != "v1" || no != nil {
		t.Errorf("%s, %v", version, no)
	}
}
