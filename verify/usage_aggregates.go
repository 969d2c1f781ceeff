package verify

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const usageSQL = `SELECT tenant_id, feature, period_key, subscription_id, amount::text, event_count, applied_count
 FROM usage_aggregates WHERE generation = $1 AND partition = $2`

func (x *pass) compareUsage(ctx context.Context, tx pgx.Tx) error {
	all, err := x.candidates(ctx, tx, x.usageAggregates, "usage_aggregates", aggregator)
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	applied := make([]int64, len(all)) // by the rows that readers see if they see the generation
	for _, g := range all {
		var f figure
		var amount string
		var n, once int64
		err := each(ctx, tx, usageSQL, []any{g.number, x.p}, []any{&f.tenant, &f.feature, &f.period, &f.subscription, &amount, &n, &once},
			func() error {
				for i := range all {
					if by := all[i].replacedBy(f); by == g.number || by == 0 && all[i].number == g.number {
						applied[i] += once
					}
				}
				x.usageAggregates.n++
				x.compareFigure(x.usageAggregates, x.figures.sums, &g, f, amount, n)
				return nil
			})
		if err != nil {
			return fmt.Errorf("read usage_aggregates: %w", err)
		}
		x.missing(x.usageAggregates, x.figures.sums, &g)
	}
	for i := range all {
		g := &all[i]
		if g.tenant == uuid.Nil && g.period == "" && g.countable(all) {
			x.applied(g, applied[i])
		}
	}
	x.consumedVerdicts.n += x.figures.consumed
	return nil
}

func (x *pass) addFigure(r *row, s *content, err error) {
	x.totals.snapshot(r.position, x.figures.sums)
	x.figures.add(x, r, s, err)
}
