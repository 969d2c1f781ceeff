package domain

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// HistoryEntry is a change of a tenant's subscription: known from position
// FromPosition on, in force from EffectiveFrom on. Subscription is nil if the tenant
// has no subscription from then on.
type HistoryEntry struct {
	FromPosition  int64
	EffectiveFrom time.Time
	Subscription  *Subscription
}

// History is a tenant's entries in the order of FromPosition. A verdict depends only
// on it and on the event.
type History []HistoryEntry

// inForce finds the subscription in force at a time, as known at a position: that of
// the last entry in effect at the time. It does not choose by the latest
// EffectiveFrom, because the clocks of instances differ: a subscription that an
// instance with a slower clock ended would stay in force for ever.
func (h History) inForce(position int64, at time.Time) *HistoryEntry {
	return h.last(position, func(e *HistoryEntry) bool { return !e.EffectiveFrom.After(at) })
}

// last returns the last entry known at a position for which a condition holds, or nil.
func (h History) last(position int64, holds func(*HistoryEntry) bool) *HistoryEntry {
	for i := len(h) - 1; i >= 0; i-- {
		if e := &h[i]; e.FromPosition <= position && holds(e) {
			return e
		}
	}
	return nil
}

// current returns the last subscription known at a position.
func (h History) current(position int64) *Subscription {
	if e := h.last(position, func(*HistoryEntry) bool { return true }); e != nil {
		return e.Subscription
	}
	return nil
}

// At returns the subscription for usage of a time, as known at a position: the one in
// force at the time, else the one that accepts usage at the position, else nil.
func (h History) At(position int64, at time.Time) *Subscription {
	if e := h.entryAt(position, at); e != nil {
		return e.Subscription
	}
	return nil
}

func (h History) entryAt(position int64, at time.Time) *HistoryEntry {
	if e := h.inForce(position, at); e != nil && e.Subscription.AcceptsUsage() {
		return e
	}
	if e := h.last(position, func(*HistoryEntry) bool { return true }); e != nil && e.Subscription.AcceptsUsage() {
		return e
	}
	return nil
}

// Verdict is the validator's acceptance.
type Verdict struct {
	SubscriptionID uuid.UUID
	FeatureType    string
	PeriodKey      string
	Grant          int64 // that the usage is charged by, as events.Validated has it
}

// Decide returns the verdict on usage of a feature: a pure function of the tenant's
// log up to a position. The refusals are those of Entitled.
func Decide(h History, position int64, feature string, at time.Time) (Verdict, *Error) {
	s, g, refusal := Entitled(h, position, feature, at)
	if refusal != nil {
		return Verdict{}, refusal
	}
	v := Verdict{SubscriptionID: s.ID, FeatureType: g.Type, PeriodKey: PeriodKey(g.ResetPeriod, at)}
	if g.Price != "" {
		v.Grant = h.GrantOf(position, at, s.ID)
	}
	return v, nil
}

// Entitled finds the grant for usage of a feature. Ingest calls it first; the
// validator's call decides. Refusals: no_active_subscription, feature_not_found,
// not_entitled.
func Entitled(h History, position int64, feature string, at time.Time) (*Subscription, *Grant, *Error) {
	s := h.At(position, at)
	if s == nil {
		return nil, nil, &Error{Code: "no_active_subscription",
			Message: "The tenant has no ACTIVE or TRIALING subscription for this time; create one, then send the event again"}
	}
	g := s.Grant(feature)
	if g == nil {
		return nil, nil, &Error{Code: "feature_not_found", Message: fmt.Sprintf("Feature %q not found in the active subscription", feature),
			Pointer: "/feature"}
	}
	if g.Type == FeatureBoolean {
		return nil, nil, &Error{Code: "not_entitled",
			Message: fmt.Sprintf("Feature %q is BOOLEAN: it is granted or not, and takes no usage", feature), Pointer: "/feature"}
	}
	return s, g, nil
}

// PeriodLifetime is the period key of features that never reset.
const PeriodLifetime = "lifetime"

// PeriodKey returns the key of the period, in UTC, that contains a time: 2026-05 for
// MONTHLY, 2026 for ANNUALLY, lifetime for NEVER.
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

// countsIn reports whether a period is one of the grant's reset period.
func countsIn(g *Grant, period string) bool {
	start, _, ok := PeriodBounds(period)
	if !ok {
		return g.ResetPeriod == ResetNever
	}
	return PeriodKey(g.ResetPeriod, start) == period
}

// CheckUsagePeriod refuses a text that is no period of usage: a month, a year or lifetime.
func CheckUsagePeriod(key string) *Error {
	if _, _, ok := PeriodBounds(key); ok || key == PeriodLifetime {
		return nil
	}
	return &Error{Code: "period_key_invalid", Pointer: "/periodKey",
		Message: "a period key is a month such as 2026-05, a year such as 2026, or lifetime"}
}

// PeriodBounds returns the half-open range [start, end) of a period key; ok is
// false for lifetime and for an invalid key.
func PeriodBounds(key string) (start, end time.Time, ok bool) {
	if t, err := time.Parse("2006-01", key); err == nil {
		return t, t.AddDate(0, 1, 0), true
	}
	if t, err := time.Parse("2006", key); err == nil {
		return t, t.AddDate(1, 0, 0), true
	}
	return time.Time{}, time.Time{}, false
}
