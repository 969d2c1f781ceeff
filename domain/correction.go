package domain

import (
	"fmt"
	"time"

	"github.com/meterplex/meterplex/events"
)

// Target is the recorded event that a correction or a retraction names.
type Target struct {
	Position  int64 // number of the recorded event
	EventID   string
	Feature   string
	IsUsage   bool // false for a correction or a retraction
	Retracted bool
	// The members below are those of the verdict on the target, and of the corrections applied to it.
	Counted     bool // the target is validated, and not parked
	Verdict     Verdict
	Timestamp   time.Time
	Amount      int64 // after all corrections and retractions applied so far
	Corrections int   // how many were applied
}

// Correctable returns why a correction or a retraction of a feature's usage cannot be recorded; nil if it can. The target is nil if no
// recorded event has the eventId ref. Refusals, in this order: correction_target_unknown, correction_ref_invalid,
// correction_target_retracted.
func (t *Target) Correctable(ref, feature string) *Error {
	switch {
	case t == nil:
		return &Error{Code: "correction_target_unknown", Pointer: "/correctionRef",
			Message: fmt.Sprintf("no accepted event has the eventId %q; send the usage first, or earlier in the same batch", ref)}
	case !t.IsUsage:
		return &Error{Code: "correction_ref_invalid", Pointer: "/correctionRef",
			Message: fmt.Sprintf("%q is a correction or a retraction itself; name the usage that it corrects", ref)}
	case t.Feature != feature:
		return &Error{Code: "correction_ref_invalid", Pointer: "/correctionRef",
			Message: fmt.Sprintf("%q is usage of the feature %q; a correction has the feature of its usage", ref, t.Feature)}
	case t.Retracted:
		return &Error{Code: "correction_target_retracted", Pointer: "/correctionRef",
			Message: fmt.Sprintf("%q is retracted, which is final; send new usage with an eventId of its own", ref)}
	}
	return nil
}

// Correct returns the change of the target by a correction to an amount, or by a retraction (kind). Refusals are those of Correctable, and
// correction_target_not_counted.
func (t *Target) Correct(kind, ref, feature string, amount int64) (events.CorrectedUsage, *Error) {
	if refusal := t.Correctable(ref, feature); refusal != nil {
		return events.CorrectedUsage{}, refusal
	}
	if !t.Counted {
		return events.CorrectedUsage{}, &Error{Code: "correction_target_not_counted", Pointer: "/correctionRef",
			Message: fmt.Sprintf("%q is rejected or dead-lettered, so it cannot be corrected; retry it, then retry this event",
				ref)}
	}
	c := events.CorrectedUsage{Kind: kind, TargetPosition: t.Position, TargetEventID: t.EventID, Before: t.Amount}
	if kind == events.TypeCorrection {
		c.After = amount
	}
	return c, nil
}

// Apply applies a change to the target.
func (t *Target) Apply(c *events.CorrectedUsage) {
	t.Amount, t.Corrections = c.After, t.Corrections+1
	t.Retracted = t.Retracted || c.Kind == events.TypeRetraction
}
