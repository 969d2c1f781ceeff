package verify

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// runningTotals compares the running totals of the figures with the sums of the log at their
// positions. The pass takes the sums when it comes to a position; verdicts that could not be
// folded, which only later events report, are subtracted after it.
type runningTotals struct {
	list    []runningTotal // in the order of their positions, those of a figure together
	next    int
	without []runningTotal      // of subscriptions with verdicts, but no row beside those of the others
	figures map[figure][]figure // those of each subscription, by the figure of all
}

// runningTotal is a row of usage_running_totals and the log's sum at its position.
type runningTotal struct {
	generation int
	position   int64
	figure     figure
	amount     string
	events     int64

	sum     big.Int
	counted int64
}

const runningTotalsSQL = `SELECT generation, position, tenant_id, feature, period_key, subscription_id, amount::text, event_count
 FROM usage_running_totals WHERE partition = $1 ORDER BY position, generation, tenant_id, feature, period_key`

func readRunningTotals(ctx context.Context, tx pgx.Tx, p int16) (runningTotals, error) {
	t := runningTotals{figures: map[figure][]figure{}}
	var r runningTotal
	err := each(ctx, tx, runningTotalsSQL, []any{p}, []any{&r.generation, &r.position, &r.figure.tenant, &r.figure.feature,
		&r.figure.period,
		&r.figure.subscription, &r.amount, &r.events}, func() error {
		t.list = append(t.list, r)
		return nil
	})
	if err != nil {
		return t, fmt.Errorf("read usage_running_totals: %w", err)
	}
	return t, nil
}

// snapshot takes the sums of the totals at positions before another.
func (t *runningTotals) snapshot(before int64, sums map[figure]*sum) {
	for t.next < len(t.list) && t.list[t.next].position < before {
		first := &t.list[t.next]
		there := map[figure]bool{}
		for ; t.next < len(t.list) && t.list[t.next].besides(first); t.next++ {
			r := &t.list[t.next]
			r.snapshot(sums)
			there[r.figure] = true
		}
		for _, f := range t.figures[first.figure.whole()] {
			if !there[f] {
				r := runningTotal{generation: first.generation, position: first.position, figure: f, amount: "0"}
				r.snapshot(sums)
				t.without = append(t.without, r)
			}
		}
	}
}

// besides reports whether two totals are of one figure at one position.
func (r *runningTotal) besides(o *runningTotal) bool {
	return r.generation == o.generation && r.position == o.position && r.figure.whole() == o.figure.whole()
}

func (r *runningTotal) snapshot(sums map[figure]*sum) {
	if s := sums[r.figure]; s != nil {
		r.sum.Set(&s.amount)
		r.counted = s.events
	}
}

// subtract subtracts a verdict that could not be folded.
func (t *runningTotals) subtract(position int64, of figure, amount *big.Int, events int64) {
	for _, list := range [][]runningTotal{t.list, t.without} {
		for i := range list {
			if r := &list[i]; r.figure == of && r.position >= position {
				r.sum.Add(&r.sum, amount)
				r.counted += events
			}
		}
	}
}

// whole is the figure of all subscriptions.
func (f figure) whole() figure { f.subscription = uuid.Nil; return f }

func (x *pass) endTotals() { x.totals.snapshot(math.MaxInt64, x.figures.sums) }

func (x *pass) compareTotals(ctx context.Context, tx pgx.Tx) error {
	all, err := x.candidates(ctx, tx, x.runningTotals, "usage_aggregates", aggregator)
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	generations := map[int]*candidate{}
	for i := range all {
		generations[all[i].number] = &all[i]
	}
	for _, r := range slices.Concat(x.totals.list, x.totals.without) {
		g := generations[r.generation]
		if g == nil || g.replacedBy(r.figure) != 0 {
			continue
		}
		x.runningTotals.n++
		switch {
		case !g.has(r.figure) || partitionOf(r.figure.tenant) != x.p || r.position > x.figures.upTo:
			x.runningTotals.fault("generation %d has running totals of %s at %s, which do not belong to it", g.number, r.figure,
				x.at(r.position))
		case r.sum.String() != r.amount || r.counted != r.events:
			x.runningTotals.fault("generation %d has %s in %d events for %s at %s, the log has %s in %d", g.number, r.amount, r.events,
				r.figure, x.at(r.position), r.sum.String(), r.counted)
		}
	}
	return nil
}
