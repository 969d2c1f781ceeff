package domain

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// HistoryEntry says what a tenant's subscription became: known from position
// FromPosition on, in force from EffectiveFrom on. Subscription nil: none.
type HistoryEntry struct {
	FromPosition  int64
	EffectiveFrom time.Time
	Subscription  *Subscription
}

// History is a tenant's entries in the order of FromPosition. It is all that a
// verdict depends on besides the event itself.
type History []HistoryEntry

// inForce finds the subscription in force at a time, as known at a position: what was
// said last of that time. Not what is to hold from the latest moment on: instances'
// clocks differ, and what was ended by the slower one's would hold for ever.
func (h History) inForce(position int64, at time.Time) *Subscription {
	for i := len(h) - 1; i >= 0; i-- {
		if e := &h[i]; e.FromPosition <= position && !e.EffectiveFrom.After(at) {
			return e.Subscription
		}
	}
	return nil
}

// current finds what was last known at a position.
func (h History) current(position int64) *Subscription {
	for i := len(h) - 1; i >= 0; i-- {
		if h[i].FromPosition <= position {
			return h[i].Subscription
		}
	}
	return nil
}

// At gives the subscription that usage of a time belongs to, as known at a
// position: the one in force then, else the one that accepts usage at the position.
// Nil where there is none.
func (h History) At(position int64, at time.Time) *Subscription {
	if s := h.inForce(position, at); s.AcceptsUsage() {
		return s
	}
	if s := h.current(position); s.AcceptsUsage() {
		return s
	}
	return nil
}

// Verdict is the validator's yes.
type Verdict struct {
	SubscriptionID uuid.UUID
	FeatureType    string
	PeriodKey      string
}

// Decide is the verdict on usage of a feature: a pure function of the tenant's
// log up to a position. The refusals are Entitled's.
func Decide(h History, position int64, feature string, at time.Time) (Verdict, *Error) {
	s, g, refusal := Entitled(h, position, feature, at)
	if refusal != nil {
		return Verdict{}, refusal
	}
	return Verdict{s.ID, g.Type, PeriodKey(g.ResetPeriod, at)}, nil
}

// Entitled finds the grant that usage of a feature counts on. Ingest asks for it
// first, the validator has the last word. Refusals: no_active_subscription,
// feature_not_found, not_entitled.
func Entitled(h History, position int64, feature string, at time.Time) (*Subscription, *Grant, *Error) {
	s := h.At(position, at)
	if s == nil {
		return nil, nil, &Error{Code: "no_active_subscription", Message: "The tenant has no ACTIVE or TRIALING subscription for this time; create one, then send the event again"}
	}
	g := s.Grant(feature)
	if g == nil {
		return nil, nil, &Error{Code: "feature_not_found", Message: fmt.Sprintf("Feature %q not found in the active subscription", feature), Pointer: "/feature"}
	}
	if g.Type == FeatureBoolean {
		return nil, nil, &Error{Code: "not_entitled", Message: fmt.Sprintf("Feature %q is BOOLEAN: it is granted or not, and takes no usage", feature), Pointer: "/feature"}
	}
	return s, g, nil
}

// PeriodLifetime is the period key of what never resets.
const PeriodLifetime = "lifetime"

// PeriodKey names the period, in UTC, that a time falls into: 2026-05 for MONTHLY,
// 2026 for ANNUALLY, lifetime for NEVER.
func PeriodKey(reset string, at time.Time) string {
	switch reset {
	case ResetMonthly:
		return at.UTC().Format("2006-01")
	case ResetAnnually:
		return at.UTC().Format("2006")
	default:
		return PeriodLifetime
	}
}

// PeriodBounds gives the half-open range [start, end) of a period key; ok is
// false for lifetime and for what is no key.
func PeriodBounds(key string) (start, end time.Time, ok bool) {
	if t, err := time.Parse("2006-01", key); err == nil {
		return t, t.AddDate(0, 1, 0), true
	}
	if t, err := time.Parse("2006", key); err == nil {
		return t, t.AddDate(1, 0, 0), true
	}
	return time.Time{}, time.Time{}, false
}
