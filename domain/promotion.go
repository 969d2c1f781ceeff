package domain

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// Generation is the state of a projection's generation on which promotions and
// rollbacks depend.
type Generation struct {
	Number   int
	TenantID uuid.UUID // its scope; Nil: all tenants
	Visible  bool      // readers see it
	Broken   string    // why it could not be fed further, "" if it can be
	Dropped  bool
	Fed      int // partitions in which it is fed together with the live one
}

// fault returns why readers cannot be shown the generation, "" if they can.
func (g *Generation) fault() string {
	partitions := events.Partitions
	if g.TenantID != uuid.Nil {
		partitions = 1
	}
	switch {
	case g.Broken != "":
		return g.Broken
	case g.Dropped:
		return "it was dropped"
	case g.Fed < partitions:
		return "it is not fed in every partition"
	}
	return ""
}

// Showable returns the reason against showing the rebuild's generation to readers, nil
// if there is none. The generations are the rebuild's and those that readers see.
// moved means that the new generation counts other events in the rebuild's period than the
// live one.
func (r *Rebuild) Showable(generations []Generation, moved bool) *Error {
	for i := range generations {
		if why := generations[i].fault(); why != "" {
			return &Error{Code: "generation_broken",
				Message: fmt.Sprintf("The rebuilt rows cannot be shown: generation %d: %s; abandon the rebuild and start another",
					generations[i].Number, why)}
		}
	}
	if moved {
		return &Error{Code: "period_not_conserved", Message: "The rebuilt rows count other events in this period than the live ones: " +
			"alone they would count some twice, or not at all. Rebuild all periods"}
	}
	return nil
}

// Uncovered returns the reason against a rollback of a promotion that a later one
// covers, nil without one.
func (r *Rebuild) Uncovered(covered bool) *Error {
	if covered {
		return &Error{Code: "rebuild_superseded", Message: "A later rebuild of the same figures was promoted; roll that one back first"}
	}
	return nil
}

// Restorable returns the reason against a rollback that makes earlier generations
// visible, nil if readers can be shown all of them.
func (r *Rebuild) Restorable(generations []Generation) *Error {
	for i := range generations {
		if g := &generations[i]; g.Visible && g.fault() != "" {
			return &Error{Code: "rollback_expired",
				Message: fmt.Sprintf("The previous figures cannot be shown any more: generation %d: %s; start another rebuild", g.Number,
					g.fault())}
		}
	}
	return nil
}

// FoldOf returns the fold version of a scope from those of its visible generations. It
// refuses a scope with more than one.
func FoldOf(versions []string) (string, *Error) {
	if len(versions) != 1 {
		return "", &Error{Code: "scope_mixed",
			Message: fmt.Sprintf("The live rows here were computed by the versions %q; verify each tenant or period that was promoted by itself",
				versions)}
	}
	return versions[0], nil
}
