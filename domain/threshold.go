package domain

import (
	"math/big"
	"time"

	"github.com/meterplex/meterplex/events"
)

const (
	// MaxThresholds bounds the thresholds of a tenant.
	MaxThresholds = 50
	// MaxThresholdPercent is the greatest percentage: above 100 only usage that is recorded, or a SOFT limit, gets there.
	MaxThresholdPercent = 1000
)

// Threshold is crossed in each period in which the used amount rises to it.
type Threshold events.Threshold

// DefinedThreshold is a threshold with the position of the event that defined it.
type DefinedThreshold struct {
	Threshold
	Position events.Position `json:"position" doc:"Usage that is counted after this position crosses it."`
}

// Event returns the payload of a change.
func (t Threshold) Event(removed bool) events.ChangedThreshold {
	return events.ChangedThreshold{Threshold: events.Threshold(t), Removed: removed}
}

// Value returns the used amount that crosses the threshold, rounded up: at 80 % of 7, 6 units are the first that are 80 % or more.
// Of the limit 0 it is the first unit. It is 0 without one: a percentage of no limit.
func (t *Threshold) Value(limit *int64) int64 {
	if t.Percent == nil {
		return *t.Amount
	}
	if limit == nil {
		return 0
	}
	if *limit == 0 {
		return 1
	}
	hundredth := new(big.Int).Mul(big.NewInt(*limit), big.NewInt(*t.Percent)) // may pass 64 bits
	hundredth.Add(hundredth, big.NewInt(99))
	return hundredth.Div(hundredth, big.NewInt(100)).Int64()
}

// Crossing is a threshold that the used amount of a feature reached in a period.
type Crossing struct {
	Threshold     *Threshold
	Value         int64 // before < value ≤ after, or below both by a reason
	Limit         *int64
	Before, After *big.Int
	Reason        string // e.g. events.CrossedByLimit; "": the rise alone
}

// Crossings returns the thresholds of a feature that a change of its used amount crosses upwards, in their order.
func Crossings(thresholds []Threshold, feature string, limit *int64, before, after *big.Int) (crossed []Crossing) {
	for i := range thresholds {
		t := &thresholds[i]
		if t.Feature != nil && *t.Feature != feature {
			continue
		}
		value := t.Value(limit)
		if v := big.NewInt(value); value > 0 && before.Cmp(v) < 0 && v.Cmp(after) <= 0 {
			crossed = append(crossed, Crossing{t, value, limit, new(big.Int).Set(before), new(big.Int).Set(after), reasonOf(t, limit)})
		}
	}
	return crossed
}

func reasonOf(t *Threshold, limit *int64) string {
	if t.Percent != nil && limit != nil && *limit == 0 {
		return events.CrossedOfZero
	}
	return ""
}

// Above returns the thresholds of a feature that its used amount has reached, for events after which it need not rise to them: another
// limit, or the definition of a threshold.
func Above(thresholds []Threshold, feature string, limit *int64, used *big.Int, reason string) (above []Crossing) {
	for _, c := range Crossings(thresholds, feature, limit, new(big.Int), used) {
		c.Before, c.Reason = c.After, reason
		above = append(above, c)
	}
	return above
}

// Event returns the payload of a crossing.
func (c *Crossing) Event(feature, periodKey string) events.CrossedThreshold {
	crossed := events.CrossedThreshold{ThresholdID: c.Threshold.ID, Feature: feature, PeriodKey: periodKey, Amount: c.Value, Limit: c.Limit,
		Before: c.Before.String(), After: c.After.String(), Reason: c.Reason}
	if c.Threshold.Percent != nil {
		crossed.Percent = *c.Threshold.Percent
	}
	return crossed
}

// Counting returns the features that the last subscription known at a position grants usage of, each in its period at a time.
func (h History) Counting(position int64, at time.Time) (keys []AccountKey) {
	s := h.current(position)
	if !s.AcceptsUsage() {
		return nil
	}
	for i := range s.Entitlements {
		if g := &s.Entitlements[i]; g.Type != FeatureBoolean {
			keys = append(keys, AccountKey{Feature: g.Feature, PeriodKey: PeriodKey(g.ResetPeriod, at)})
		}
	}
	return keys
}

// LimitOf returns the limit of a feature in a period by the last subscription known at a position; nil: none, or no such grant. The grant
// of another reset period counts in other periods.
func (h History) LimitOf(position int64, feature, periodKey string) *int64 {
	return h.current(position).LimitOf(feature, periodKey)
}

// LimitOf returns the limit of a feature in a period; nil: none, or no grant in force.
func (s *Subscription) LimitOf(feature, periodKey string) *int64 {
	if !s.AcceptsUsage() {
		return nil
	}
	if g := s.Grant(feature); g != nil && countsIn(g, periodKey) {
		return g.Limit
	}
	return nil
}
