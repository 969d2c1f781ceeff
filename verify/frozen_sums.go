package verify

import (
	"context"
	"math/big"

	"github.com/jackc/pgx/v5"
)

// logicV1 is the fold whose figures this program sums up.
const logicV1 = "usage_aggregates/v1"

func (x *pass) addFrozenSum(r *row, s *content, err error) {
	if r.topic == topicValidated && err == nil && len(x.periods.of) > 0 && !x.withheld[r.position] {
		x.countFrozen(r, s, 1)
	}
}

// countFrozen adds a verdict, or the retried fold of one, to the snapshots of its period that count it: those that were frozen after it, if
// its cause is not behind their cut. A sign of -1 subtracts it, because it could not be folded.
func (x *pass) countFrozen(r *row, s *content, sign int64) {
	if r.subject == reaggregated {
		if s = s.Validated; s == nil {
			return
		}
	}
	p := x.periods.of[periodKey{r.tenant, s.PeriodKey}]
	amount, ok := amountOf(s, sign)
	if p == nil || !ok {
		return
	}
	cause, _ := x.causeOf(p, r, s)
	present, counted := p.present(), false
	for _, n := range p.snapshots {
		if r.position < n.closed && cause <= n.cut {
			add(n.sums, n.figureOf(s.Feature, s.ValidatedSubscriptionID), amount, sign*s.Count)
			counted = counted || n == present
		}
	}
	switch {
	case present == nil:
	case counted && r.subject == validated && sign > 0:
		x.periods.frozen.set(s.RawPosition, x.head)
	case counted:
		x.periods.more[s.RawPosition] += int(sign)
	case r.position <= x.figures.upTo:
		x.periods.behind[s.RawPosition] += int(sign)
	}
}

// inFrozen reports whether the present snapshot of its period counts a recorded event.
func (all *periods) inFrozen(recorded int64) bool {
	n := all.more[recorded]
	if all.frozen.has(recorded) {
		n++
	}
	return n > 0
}

// compareSums compares the frozen figures, as the events have them, with the sums of the log.
func (x *pass) compareSums(context.Context, pgx.Tx) error {
	for _, p := range x.periods.of {
		for _, n := range p.snapshots {
			switch {
			case n.closed == 0:
			case n.logic != logicV1:
				x.frozenSums.add(1, "snapshots by an unknown version are not checked")
			default:
				x.compareSnapshot(n)
			}
		}
	}
	return nil
}

func (x *pass) compareSnapshot(n *frozenSnapshot) {
	seen := map[figure]bool{}
	for i := range n.lines {
		l := &n.lines[i]
		f := n.figureOf(l.Feature, l.SubscriptionID)
		s := n.sums[f]
		if s == nil {
			s = new(sum)
		}
		seen[f] = true
		x.frozenSums.n++
		x.frozenSums.expect(l.Amount == s.amount.String() && l.EventCount == s.events,
			"snapshot %d has %.40s in %d events for %s, the results up to %s are %s in %d", n.number, l.Amount, l.EventCount, f,
			x.at(n.cut), &s.amount, s.events)
	}
	for f, s := range n.sums {
		x.frozenSums.expect(seen[f] || s.events == 0 && s.amount.Sign() == 0,
			"snapshot %d has no line for %s, the results up to %s are %s in %d", n.number, f, x.at(n.cut), &s.amount, s.events)
	}
}

// bigOf reads an amount of a payload or a table.
func bigOf(text string) *big.Int {
	n := new(big.Int)
	if len(text) <= maxDigits {
		n.SetString(text, 10)
	}
	return n
}
