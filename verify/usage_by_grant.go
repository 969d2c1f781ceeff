package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// grantFigure is the key of a sum by grant.
type grantFigure struct {
	figure
	grant int64
}

const byGrantSQL = `SELECT tenant_id, feature, period_key, subscription_id, grant_number, amount::text, applied_count
 FROM usage_by_grant WHERE generation = $1 AND partition = $2`

// compareGrants compares the sums by grant with those of the verdicts that name a grant.
func (x *pass) compareGrants(ctx context.Context, tx pgx.Tx) error {
	all, err := x.candidates(ctx, tx, new(tally), "usage_aggregates", aggregator) // usageAggregates reports generations by unknown folds
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	for i := range all {
		g := &all[i]
		var f grantFigure
		var amount string
		var applied int64
		err := each(ctx, tx, byGrantSQL, []any{g.number, x.p}, []any{&f.tenant, &f.feature, &f.period, &f.subscription, &f.grant, &amount,
			&applied}, func() error {
			x.usageByGrant.n++
			if g.replacedBy(f.figure) != 0 {
				return nil
			}
			s := x.figures.byGrant[f]
			if s == nil {
				s = new(sum)
			}
			s.seen = g.number
			x.usageByGrant.expect(s.amount.String() == amount && s.events == applied,
				"generation %d has %s of %d results for %s by grant %d, the log has %s of %d", g.number, amount, applied, f.figure,
				f.grant, &s.amount, s.events)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read usage_by_grant: %w", err)
		}
		for f, s := range x.figures.byGrant {
			x.usageByGrant.expect(s.seen == g.number || s.events == 0 || !g.has(f.figure) || g.replacedBy(f.figure) != 0,
				"generation %d has no row for %s by grant %d, the log has %s", g.number, f.figure, f.grant, &s.amount)
		}
	}
	return nil
}
