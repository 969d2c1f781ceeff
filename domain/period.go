package domain

import (
	"fmt"

	"github.com/meterplex/meterplex/events"
)

// Changes of a period, at the positions of their events.
const (
	PeriodCloseRequested = "close_requested" // the cut: later events of the period are late
	PeriodClosed         = "closed"          // the figures are frozen
	PeriodReopened       = "reopened"
)

// States of a period, which follow from its last change.
const (
	StateOpen    = "OPEN"
	StateClosing = "CLOSING"
	StateClosed  = "CLOSED"
)

// PeriodChange is a change of a tenant's period.
type PeriodChange struct {
	Position  int64
	PeriodKey string
	Snapshot  int // 1 for the first close, one more after each reopening
	Change    string
}

// LatePolicy is a tenant's policy for late usage from a position on.
type LatePolicy struct {
	FromPosition int64
	LateUsage    string // events.LateUsageReject or events.LateUsageAdjust
}

// PeriodHistory holds the changes of a tenant's periods, and its policies for late usage, in the order of their positions. Whether an event
// is late depends only on it and on the event (P8).
type PeriodHistory struct {
	Changes  []PeriodChange
	Policies []LatePolicy
}

// TenantHistory is all of a tenant that verdicts depend on, and its present thresholds.
type TenantHistory struct {
	History
	PeriodHistory
	Thresholds []Threshold // in the order of their positions; no verdict depends on them
}

// lastChange returns the last change of a period before a position; nil without one.
func (h *PeriodHistory) lastChange(periodKey string, position int64) *PeriodChange {
	for i := len(h.Changes) - 1; i >= 0; i-- {
		if c := &h.Changes[i]; c.Position < position && c.PeriodKey == periodKey {
			return c
		}
	}
	return nil
}

// Last returns the last change of a period; nil if it was never closed.
func (h *PeriodHistory) Last(periodKey string) *PeriodChange {
	return h.lastChange(periodKey, wholeHistory)
}

// LastSnapshot returns the number of the last snapshot of a period that a close has begun; 0: none.
func (h *PeriodHistory) LastSnapshot(periodKey string) int {
	if last := h.Last(periodKey); last != nil {
		return last.Snapshot
	}
	return 0
}

// State returns the state of a period after its last change; nil: it has no change.
func (c *PeriodChange) State() string {
	switch {
	case c == nil || c.Change == PeriodReopened:
		return StateOpen
	case c.Change == PeriodCloseRequested:
		return StateClosing
	}
	return StateClosed
}

// Closed returns the snapshot behind whose cut a position is: an event of the period there is late. It is 0 if the period is open.
func (h *PeriodHistory) Closed(periodKey string, position int64) (snapshot int) {
	if c := h.lastChange(periodKey, position); c.State() != StateOpen {
		return c.Snapshot
	}
	return 0
}

// Frozen returns the snapshot whose figures are frozen at a position; 0 if the period is open, or still closing.
func (h *PeriodHistory) Frozen(periodKey string, position int64) (snapshot int) {
	if c := h.lastChange(periodKey, position); c.State() == StateClosed {
		return c.Snapshot
	}
	return 0
}

// Cut returns the number of the request to close a period with a snapshot; 0 without one.
func (h *PeriodHistory) Cut(periodKey string, snapshot int) int64 {
	for _, c := range h.Changes {
		if c.PeriodKey == periodKey && c.Snapshot == snapshot && c.Change == PeriodCloseRequested {
			return c.Position
		}
	}
	return 0
}

// LatePolicy returns the policy as known at a position.
func (h *PeriodHistory) LatePolicy(position int64) string {
	for i := len(h.Policies) - 1; i >= 0; i-- {
		if h.Policies[i].FromPosition < position {
			return h.Policies[i].LateUsage
		}
	}
	return events.LateUsageReject
}

// RetriedUsage is the retry of a recorded event.
type RetriedUsage struct {
	Position int64
	Rejected bool // the event had been rejected; false: it was only parked
}

// Cause returns the position that decides whether a verdict is late: that of the recorded event, or that of its retry if the event had been
// rejected, or if the period was frozen before the retry. A nil retry is none.
func (h *PeriodHistory) Cause(periodKey string, recorded int64, retry *RetriedUsage) int64 {
	if retry != nil && (retry.Rejected || h.Frozen(periodKey, retry.Position) > 0) {
		return retry.Position
	}
	return recorded
}

// DecideLate returns the adjustment that a verdict on an event is, nil if the event is not late. The kind is that of the event if it is
// not retried. Late usage is refused with period_closed, unless the tenant's policy at its cause adjusts it; all other events are accepted.
func (h *PeriodHistory) DecideLate(periodKey, kind string, recorded int64, retry *RetriedUsage) (*events.Late, *Error) {
	if len(h.Changes) == 0 {
		return nil, nil
	}
	cause := h.Cause(periodKey, recorded, retry)
	snapshot := h.Closed(periodKey, cause)
	if snapshot == 0 {
		return nil, nil
	}
	if kind == events.AdjustmentLateUsage && retry != nil {
		kind = events.AdjustmentRetry
	}
	if kind == events.AdjustmentLateUsage && h.LatePolicy(cause) != events.LateUsageAdjust {
		return nil, periodClosed(periodKey)
	}
	return &events.Late{Snapshot: snapshot, Kind: kind}, nil
}

// RefuseLate returns why usage that is recorded now in a period would be refused; nil if it would not.
func (h *PeriodHistory) RefuseLate(periodKey string) *Error {
	_, refusal := h.DecideLate(periodKey, events.AdjustmentLateUsage, wholeHistory, nil)
	return refusal
}

// RetryAfterFreeze returns the snapshot that the retried fold of a verdict adjusts; 0 if it adjusts no snapshot: the period is not frozen,
// or the verdict is an adjustment of the snapshot already.
func (h *PeriodHistory) RetryAfterFreeze(v *events.Validated) (snapshot int) {
	snapshot = h.Frozen(v.PeriodKey, wholeHistory)
	if v.Late != nil && v.Late.Snapshot == snapshot {
		return 0
	}
	return snapshot
}

func periodClosed(periodKey string) *Error {
	return &Error{Code: "period_closed", Pointer: "/timestamp",
		Message: fmt.Sprintf("The period %s is closed, and the tenant's policy refuses late usage; set lateUsage to ADJUST, or "+
			"reopen the period", periodKey)}
}
