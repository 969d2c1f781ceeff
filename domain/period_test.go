package domain

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// closings is the history of a period that was closed at 10, frozen at 20, reopened at 30 and closed again at 40, whose figures are frozen
// at 50. Another period is closed at 5.
func closings() PeriodHistory {
	return PeriodHistory{Changes: []PeriodChange{
		{5, "2026-04", 1, PeriodCloseRequested},
		{10, "2026-05", 1, PeriodCloseRequested}, {20, "2026-05", 1, PeriodClosed}, {30, "2026-05", 1, PeriodReopened},
		{40, "2026-05", 2, PeriodCloseRequested}, {50, "2026-05", 2, PeriodClosed},
	}}
}

// An event is late if its cause is behind the cut: the event at the cut is the request itself.
func TestP8_AnEventIsLateBehindTheCut(t *testing.T) {
	h := closings()
	for _, c := range []struct {
		position       int64
		closed, frozen int
	}{{9, 0, 0}, {10, 0, 0}, {11, 1, 0}, {20, 1, 0}, {21, 1, 1}, {30, 1, 1}, {31, 0, 0}, {40, 0, 0}, {41, 2, 0}, {50, 2, 0}, {51, 2, 2},
		{wholeHistory, 2, 2}} {
		if closed, frozen := h.Closed("2026-05", c.position), h.Frozen("2026-05", c.position); closed != c.closed || frozen != c.frozen {
			t.Errorf("an event at %d is behind the cut of snapshot %d, frozen is %d; want %d and %d", c.position, closed, frozen, c.closed,
				c.frozen)
		}
	}
	for period, snapshot := range map[string]int{"2026-04": 1, "2026-06": 0, "2026": 0, PeriodLifetime: 0} {
		if got := h.Closed(period, wholeHistory); got != snapshot || h.Frozen(period, wholeHistory) != 0 {
			t.Errorf("%s: behind the cut of snapshot %d", period, got)
		}
	}
	for snapshot, cut := range map[int]int64{1: 10, 2: 40, 3: 0} {
		if got := h.Cut("2026-05", snapshot); got != cut {
			t.Errorf("snapshot %d has the cut %d instead of %d", snapshot, got, cut)
		}
	}
	if got := h.Cut("2026-04", 2); got != 0 {
		t.Errorf("a snapshot that was never begun has the cut %d", got)
	}
}

func TestStateOfAPeriod(t *testing.T) {
	h := closings()
	states := []string{StateOpen, StateClosing, StateClosed, StateOpen, StateClosing, StateClosed}
	for n := range states {
		before := PeriodHistory{Changes: h.Changes[:n+1]}
		if got := before.Last("2026-05").State(); got != states[n] {
			t.Errorf("after %+v the period is %s instead of %s", before.Changes[n], got, states[n])
		}
	}
	if (&PeriodHistory{}).Last("2026-05") != nil {
		t.Error("a period that was never closed has a change")
	}
}

// The cause is the recorded event; the retry if the event was rejected, or if the figures were frozen before the retry.
func TestP8_TheCauseOfAVerdict(t *testing.T) {
	h := closings()
	for name, c := range map[string]struct {
		recorded int64
		retry    *RetriedUsage
		cause    int64
	}{
		"recorded":                             {9, nil, 9},
		"parked, retried while open":           {8, &RetriedUsage{Position: 9}, 8},
		"parked, retried while closing":        {9, &RetriedUsage{Position: 15}, 9},
		"parked, retried after the freeze":     {9, &RetriedUsage{Position: 25}, 25},
		"parked, retried after the reopening":  {9, &RetriedUsage{Position: 35}, 9},
		"parked, retried in the second close":  {9, &RetriedUsage{Position: 45}, 9},
		"parked, retried after both":           {9, &RetriedUsage{Position: 60}, 60},
		"rejected, retried while open":         {8, &RetriedUsage{Position: 9, Rejected: true}, 9},
		"rejected, retried while closing":      {9, &RetriedUsage{Position: 15, Rejected: true}, 15},
		"rejected, retried after the reopened": {9, &RetriedUsage{Position: 35, Rejected: true}, 35},
	} {
		if got := h.Cause("2026-05", c.recorded, c.retry); got != c.cause {
			t.Errorf("%s: the cause is %d instead of %d", name, got, c.cause)
		}
	}
}

// Only late usage is refused, and only by the policy as known at its cause.
func TestP8_LatenessOfEachKind(t *testing.T) {
	h := closings()
	h.Policies = []LatePolicy{{12, events.LateUsageAdjust}, {16, events.LateUsageReject}, {44, events.LateUsageAdjust}}
	retried := func(position int64, rejected bool) *RetriedUsage {
		return &RetriedUsage{Position: position, Rejected: rejected}
	}
	late := func(snapshot int, kind string) *events.Late { return &events.Late{Snapshot: snapshot, Kind: kind} }
	for name, c := range map[string]struct {
		kind     string
		recorded int64
		retry    *RetriedUsage
		want     *events.Late
		refused  bool
	}{
		"up to the cut":                      {events.AdjustmentLateUsage, 10, nil, nil, false},
		"behind it, before any policy":       {events.AdjustmentLateUsage, 11, nil, nil, true},
		"at the change to ADJUST":            {events.AdjustmentLateUsage, 12, nil, nil, true},
		"behind the change to ADJUST":        {events.AdjustmentLateUsage, 13, nil, late(1, events.AdjustmentLateUsage), false},
		"behind the change back":             {events.AdjustmentLateUsage, 17, nil, nil, true},
		"reopened":                           {events.AdjustmentLateUsage, 35, nil, nil, false},
		"of the second snapshot, refused":    {events.AdjustmentLateUsage, 42, nil, nil, true},
		"of the second snapshot, adjusted":   {events.AdjustmentLateUsage, 45, nil, late(2, events.AdjustmentLateUsage), false},
		"a commit":                           {events.AdjustmentLateCommit, 17, nil, late(1, events.AdjustmentLateCommit), false},
		"a correction":                       {events.AdjustmentCorrection, 17, nil, late(1, events.AdjustmentCorrection), false},
		"a retraction":                       {events.AdjustmentRetraction, 42, nil, late(2, events.AdjustmentRetraction), false},
		"rejected, retried":                  {events.AdjustmentLateUsage, 9, retried(17, true), late(1, events.AdjustmentRetry), false},
		"rejected late, retried when open":   {events.AdjustmentLateUsage, 17, retried(35, true), nil, false},
		"parked, retried while closing":      {events.AdjustmentLateUsage, 9, retried(17, false), nil, false},
		"parked, retried when frozen":        {events.AdjustmentLateUsage, 9, retried(25, false), late(1, events.AdjustmentRetry), false},
		"late and parked, retried when open": {events.AdjustmentLateUsage, 17, retried(35, false), late(1, events.AdjustmentRetry), false},
		"a correction, retried": {events.AdjustmentCorrection, 9, retried(25, false), late(1, events.AdjustmentCorrection),
			false},
		"a commit, retried": {events.AdjustmentLateCommit, 9, retried(25, true), late(1, events.AdjustmentLateCommit),
			false},
	} {
		got, refusal := h.DecideLate("2026-05", c.kind, c.recorded, c.retry)
		if (refusal != nil) != c.refused || (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, refusal, c.want)
		}
		if refusal != nil && (refusal.Code != "period_closed" || refusal.Pointer != "/timestamp") {
			t.Errorf("%s: refused with %+v", name, refusal)
		}
	}
	if got, refusal := h.DecideLate("2026-06", events.AdjustmentLateUsage, 60, nil); got != nil || refusal != nil {
		t.Errorf("usage of an open period: %+v %v", got, refusal)
	}
}

// The retried fold of a verdict adjusts the frozen figures, unless the verdict is their adjustment already.
func TestP8_ARetryAfterTheFreezeIsAnAdjustment(t *testing.T) {
	all := closings()
	for name, c := range map[string]struct {
		changes int // how many of the changes are known
		period  string
		late    *events.Late
		want    int
	}{
		"never closed":               {6, "2026-06", nil, 0},
		"closing":                    {2, "2026-05", nil, 0},
		"frozen":                     {3, "2026-05", nil, 1},
		"frozen, and late":           {3, "2026-05", &events.Late{Snapshot: 1}, 0},
		"reopened":                   {4, "2026-05", nil, 0},
		"closing again":              {5, "2026-05", &events.Late{Snapshot: 1}, 0},
		"frozen again":               {6, "2026-05", nil, 2},
		"frozen again, late before":  {6, "2026-05", &events.Late{Snapshot: 1}, 2},
		"frozen again, late by then": {6, "2026-05", &events.Late{Snapshot: 2}, 0},
	} {
		h := PeriodHistory{Changes: all.Changes[:c.changes]}
		if got := h.RetryAfterFreeze(&events.Validated{PeriodKey: c.period, Late: c.late}); got != c.want {
			t.Errorf("%s: the retry adjusts snapshot %d instead of %d", name, got, c.want)
		}
	}
}

// Consumptions, holds and enforced usage of a closed period are refused under REJECT and granted under ADJUST. A commit is granted always.
func TestP8_LedgersRefuseUsageOfClosedPeriods(t *testing.T) {
	enforced := quota("calls", 10, LimitHard, ResetMonthly)
	enforced.OnIngest = OnIngestEnforce
	subscriptions := granting(enforced, featureOf(FeatureMetered, "bytes"), quota("yearly", 10, LimitHard, ResetAnnually))
	closed := []PeriodChange{{10, "2026-05", 1, PeriodCloseRequested}}
	adjusting := []LatePolicy{{11, events.LateUsageAdjust}}
	for name, c := range map[string]struct {
		h       *PeriodHistory
		feature string
		granted bool
	}{
		"never closed":   {nil, "calls", true},
		"closing":        {&PeriodHistory{Changes: closed}, "calls", false},
		"METERED":        {&PeriodHistory{Changes: closed}, "bytes", false},
		"another period": {&PeriodHistory{Changes: closed}, "yearly", true},
		"adjusted":       {&PeriodHistory{Changes: closed, Policies: adjusting}, "calls", true},
		"reopened": {&PeriodHistory{Changes: append(closed[:1:1], PeriodChange{20, "2026-05", 1, PeriodClosed},
			PeriodChange{30, "2026-05", 1, PeriodReopened})}, "calls", true},
	} {
		for _, kind := range []RequestKind{Use, Enforce, Hold} {
			l := NewLedger(ledgerTime)
			if c.h != nil {
				l.LoadPeriods(ledgerTenant, c.h)
			}
			r := ledgerRequest(c.feature, 4)
			if r.Kind = kind; kind == Hold {
				r.ReservationID, r.Lasts = "r", time.Hour
			}
			granted, _, refusal := l.Decide(subscriptions, []LedgerRequest{ledgerRequest("yearly", 1), r})
			if (refusal == nil) != c.granted || refusal != nil && refusal.Code != "period_closed" {
				t.Errorf("%s, kind %d: %+v %v", name, kind, granted, refusal)
			}
			if want := map[bool]string{true: "1", false: "0"}[c.granted]; c.feature != "yearly" && l.usedIn("yearly", "2026") != want {
				t.Errorf("%s, kind %d: %s are used by the request that is decided together", name, kind, l.usedIn("yearly", "2026"))
			}
		}
	}
	l := NewLedger(ledgerTime)
	l.LoadPeriods(uuid.UUID{9}, &PeriodHistory{Changes: closed})
	if _, _, refusal := l.Decide(subscriptions, []LedgerRequest{ledgerRequest("calls", 1)}); refusal != nil {
		t.Errorf("refused by the closed period of another tenant: %v", refusal)
	}
}

func TestP8_ACommitOfAClosedPeriodIsGranted(t *testing.T) {
	l := NewLedger(ledgerTime)
	l.LoadPeriods(ledgerTenant, &PeriodHistory{Changes: []PeriodChange{{10, "2026-05", 1, PeriodCloseRequested}}})
	a := new(Account)
	a.Held.SetInt64(7)
	l.Load(AccountKey{ledgerTenant, "calls", "2026-05"}, a)
	l.LoadReservation(ledgerTenant, &events.ReservationState{ID: "r", Feature: "calls", PeriodKey: "2026-05", FeatureType: FeatureQuota,
		Amount: 7, State: events.StateHeld,
		ExpiresAt: ledgerTime.Add(time.Hour)})
	granted, _, refusal := l.Decide(granting(quota("calls", 10, LimitHard, ResetMonthly)), []LedgerRequest{onHold(Commit, "r", 4, 0)})
	if refusal != nil || granted[0].PeriodKey != "2026-05" || l.usedIn("calls", "2026-05") != "4" {
		t.Errorf("%+v %v", granted, refusal)
	}
}
