package verify

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// addDecision applies the events that decide adjustments: decisions, reopenings, and discards of dead letters.
func (x *pass) addDecision(r *row, s *content, err error) {
	all := &x.periods.adjusted
	switch r.subject {
	case publishFailed, aggregationFailed:
		if err == nil {
			id := s.DeadLetterID
			all.letters[id] = append(all.letters[id], s.SourcePosition)
		}
	case letterClosed:
		if l := x.letterStates.letters[s.DeadLetterID]; err == nil && s.Status == stateDiscarded && l != nil && l.parked {
			x.decide(r, x.discarded(r, all.letters[s.DeadLetterID]), "VOID", "its dead letter was discarded")
		}
	case periodReopened, adjustmentProposed, adjustmentDecided:
		c, err := decodePeriod(r)
		if err != nil {
			x.adjustmentStates.fault("%s cannot be read: %v", x.at(r.position), err)
			return
		}
		x.addDecided(r, &c)
	}
}

func (x *pass) addDecided(r *row, c *periodContent) {
	switch r.subject {
	case adjustmentProposed:
		x.addProposal(r, c)
	case periodReopened:
		pending := pendingOf(x.periods.adjusted.bySnapshot[x.periods.snapshot(periodKey{r.tenant, c.PeriodKey}, c.Snapshot)], nil)
		x.adjustmentStates.expect(c.Voided == int64(len(pending)), "%s voids %d adjustments, %d were pending", x.at(r.position), c.Voided,
			len(pending))
		x.decide(r, pending, "VOID", "the period was reopened")
	default:
		x.addChoice(r, c)
	}
}

// addChoice applies a decision: all adjustments that it names were pending, and count and amount are theirs.
func (x *pass) addChoice(r *row, c *periodContent) {
	x.adjustmentStates.expect(c.Decision == "APPROVED" || c.Decision == "WAIVED", "%s decides %.20q", x.at(r.position), c.Decision)
	var which []*adjustment
	for _, id := range c.IDs {
		if a := x.periods.adjusted.byID[id]; a != nil && a.of.tenant == r.tenant && a.state == "PENDING" {
			which = append(which, a)
		} else {
			x.adjustmentStates.fault("%s decides %s, which is no pending adjustment of its tenant", x.at(r.position), id)
		}
	}
	if c.Scope != nil {
		which = append(which, x.inScope(r, c.Scope)...)
	}
	var total big.Int
	for _, a := range which {
		total.Add(&total, bigOf(a.amount))
	}
	x.adjustmentStates.expect(c.Count == int64(len(which)) && c.Amount == total.String(),
		"%s decides %d adjustments of %.40s in all, %d of %s were pending", x.at(r.position), c.Count, c.Amount, len(which), &total)
	x.decide(r, which, c.Decision, c.Reason)
}

// inScope returns the pending adjustments of a scope: those of the snapshot that is present at r.
func (x *pass) inScope(r *row, scope *decidedScope) []*adjustment {
	p := x.periods.of[periodKey{r.tenant, scope.PeriodKey}]
	_, number, _ := strings.Cut(scope.UpTo, "-")
	upTo, err := strconv.ParseInt(number, 10, 64)
	if p == nil || err != nil || p.closedAt(r.position) == 0 {
		x.adjustmentStates.fault("%s decides the adjustments of %.40s up to %.40s, which is not closed", x.at(r.position), scope.PeriodKey,
			scope.UpTo)
		return nil
	}
	return pendingOf(x.periods.adjusted.bySnapshot[p.numbered(p.closedAt(r.position))], func(a *adjustment) bool {
		return a.position <= upTo && (scope.Feature == "" || scope.Feature == a.of.feature) && (scope.Kind == "" || scope.Kind == a.kind)
	})
}

// pendingOf returns the pending adjustments of a list.
func pendingOf(list []*adjustment, wanted func(*adjustment) bool) (pending []*adjustment) {
	for _, a := range list {
		if a.state == "PENDING" && (wanted == nil || wanted(a)) {
			pending = append(pending, a)
		}
	}
	return pending
}

// discarded returns the adjustments that the discard r of events that failed voids: of the recorded event, of the verdict on it, or of a
// retried fold. Those of a snapshot that was reopened before stay as they were decided.
func (x *pass) discarded(r *row, failed []int64) (list []*adjustment) {
	all := &x.periods.adjusted
	for _, at := range failed {
		of := all.byRecorded[at]
		if a := all.byPosition[at]; a != nil {
			of = all.byRecorded[a.recorded]
		}
		for _, a := range of {
			p := x.periods.of[periodKey{a.of.tenant, a.of.period}]
			if a.state != "VOID" && p.closedAt(r.position) == a.snapshot && !slices.Contains(list, a) {
				list = append(list, a)
			}
		}
	}
	return list
}

// decide sets the state of adjustments.
func (x *pass) decide(r *row, which []*adjustment, state, reason string) {
	for _, a := range which {
		a.state, a.reason, a.decided = state, reason, r.position
	}
}

// compareState compares the state of a row with the one that follows from the log.
func (x *pass) compareState(a *adjustment, is *adjustmentRow) {
	x.adjustmentStates.n++
	x.adjustmentStates.expect(is.state == a.state && is.reason == a.reason && is.decided == a.decided,
		"the adjustment at %s of %s is %s by %d (%.80s), the log has it %s by %d (%.80s)",
		x.at(a.position), a.of, is.state, is.decided, is.reason, a.state, a.decided, fmt.Sprint(a.reason))
}
