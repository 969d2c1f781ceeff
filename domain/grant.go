package domain

import (
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// StatusBefore is the status of usage before the start of the tenant's first subscription: it counts, and costs 0.
const StatusBefore = "BEFORE"

// GrantOf returns the number of the grant that usage under a subscription is charged by: the position of the entry in force at a time, as
// known at a position. Usage before the start of the first subscription has events.GrantBefore. Without an entry in force at the time it is
// the one that the usage was counted by, else the subscription's last known, else its first.
func (h History) GrantOf(position int64, at time.Time, subscription uuid.UUID) int64 {
	if h.before(position, at) {
		return events.GrantBefore
	}
	if e := h.entryAt(position, at); e != nil && e.Subscription.ID == subscription {
		return e.FromPosition
	}
	of := func(e *HistoryEntry) bool { return e.Subscription != nil && e.Subscription.ID == subscription }
	e := h.last(position, func(e *HistoryEntry) bool { return of(e) && !e.EffectiveFrom.After(at) })
	if e == nil {
		e = h.last(position, of)
	}
	for i := range h {
		if e == nil && of(&h[i]) {
			e = &h[i]
		}
	}
	if e == nil {
		return events.GrantBefore
	}
	return e.FromPosition
}

// PricedGrantOf is GrantOf for a verdict, which names a grant only if it has a price: 0 otherwise.
func (h History) PricedGrantOf(position int64, at time.Time, subscription uuid.UUID, feature string) int64 {
	number := h.GrantOf(position, at, subscription)
	if g := h.grant(number, subscription, feature); g == nil || g.Price == "" {
		return 0
	}
	return number
}

// before reports whether a time is before the start of the first subscription known at a position.
func (h History) before(position int64, at time.Time) bool {
	known := false
	for i := range h {
		if e := &h[i]; e.FromPosition <= position && e.Subscription != nil {
			if !e.EffectiveFrom.After(at) {
				return false
			}
			known = true
		}
	}
	return known
}

// entry returns the entry of a grant; that of usage before all is the subscription's first. It is nil if the history has none.
func (h History) entry(number int64, subscription uuid.UUID) *HistoryEntry {
	for i := range h {
		if e := &h[i]; e.Subscription != nil &&
			(number == e.FromPosition || number == events.GrantBefore && e.Subscription.ID == subscription) {
			return e
		}
	}
	return nil
}

func (h History) grant(number int64, subscription uuid.UUID, feature string) *Grant {
	e := h.entry(number, subscription)
	if e == nil {
		return nil
	}
	return e.Subscription.Grant(feature)
}

// LastGrant returns the last grant of a subscription.
func (h History) LastGrant(subscription uuid.UUID) int64 {
	e := h.last(math.MaxInt64, func(e *HistoryEntry) bool { return e.Subscription != nil && e.Subscription.ID == subscription })
	if e == nil {
		return events.GrantBefore
	}
	return e.FromPosition
}

// OnlyGrant returns the grant of all usage under a subscription in a period, if no other is possible.
func (h History) OnlyGrant(subscription uuid.UUID, periodKey string) (number int64, only bool) {
	var e *HistoryEntry
	for i := range h {
		if s := h[i].Subscription; s != nil && s.ID == subscription {
			if e != nil {
				return 0, false
			}
			e = &h[i]
		}
	}
	start, _, bounded := PeriodBounds(periodKey)
	if e == nil || !bounded || h.before(e.FromPosition, start) {
		return 0, false
	}
	return e.FromPosition, true
}

// GrantTerms are the terms of a line of charges.
type GrantTerms struct {
	Status       string // of the subscription, or StatusBefore
	From, To     *time.Time
	Price        string // key; "": none
	PriceVersion int64
	Free         bool // by its status: the line costs 0

	start time.Time
}

// Terms returns the terms of a grant of a feature, as known at a position, with the part of its interval that lies in the period. A grant
// that the history does not have has no price.
func (h History) Terms(number, position int64, subscription uuid.UUID, feature, periodKey string) (t GrantTerms) {
	e := h.entry(number, subscription)
	if e == nil {
		return GrantTerms{Status: StatusBefore, Free: true}
	}
	to := h.endOf(e, position)
	t.Status, t.start, t.From, t.To = e.Subscription.Status, e.EffectiveFrom, &e.EffectiveFrom, to
	if number == events.GrantBefore {
		first := h.firstStart(position)
		t.Status, t.start, t.From, t.To = StatusBefore, time.Time{}, nil, &first
	}
	g := e.Subscription.Grant(feature)
	if g != nil && g.Price != "" {
		t.Price, t.PriceVersion = g.Price, g.PriceVersion
	}
	t.Free = t.Status == StatusBefore || t.Status == SubscriptionTrialing && (g == nil || !g.ChargeTrial)
	if start, end, ok := PeriodBounds(periodKey); ok {
		t.From, t.To = later(t.From, &start), earlier(t.To, &end)
	}
	return t
}

// endOf returns the time at which the next entry known at a position takes effect, nil if there is none.
func (h History) endOf(e *HistoryEntry, position int64) *time.Time {
	for i := range h {
		if n := &h[i]; n.FromPosition > e.FromPosition && n.FromPosition <= position {
			return &n.EffectiveFrom
		}
	}
	return nil
}

func (h History) firstStart(position int64) (first time.Time) {
	for i := range h {
		if e := &h[i]; e.Subscription != nil && e.FromPosition <= position && (first.IsZero() || e.EffectiveFrom.Before(first)) {
			first = e.EffectiveFrom
		}
	}
	return first
}

func later(a, b *time.Time) *time.Time {
	if a == nil || a.Before(*b) {
		return b
	}
	return a
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || a.After(*b) {
		return b
	}
	return a
}
