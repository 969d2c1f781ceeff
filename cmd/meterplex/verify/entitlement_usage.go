package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// usedSQL computes the partition from the tenant: entitlement_usage has no column for it.
const usedSQL = `SELECT tenant_id, feature, period_key, used::text FROM entitlement_usage
 WHERE generation = $1 AND CASE WHEN tenant_id = '00000000-0000-0000-0000-000000000000' THEN 0
  ELSE get_byte(sha256(convert_to(tenant_id::text, 'UTF8')), 0) % 32 END = $2`

// usedLessDiscarded is the fold that subtracts verdicts in discarded dead letters; the first one keeps them.
const usedLessDiscarded = "entitlement_reads/v2"

// usedWhenAdmitted is the fold that counts admitted usage when it is recorded, and leaves it in discarded dead letters.
const usedWhenAdmitted = "entitlement_reads/v3"

// usedBy returns the sums that a generation by a version of the fold must have.
func (m *figureSums) usedBy(version string) map[figure]*sum {
	all := make(map[figure]*sum, len(m.used))
	for f, s := range m.used {
		add(all, f, &s.amount, s.events)
	}
	var more []map[figure]*sum
	switch version {
	case usedLessDiscarded:
		more = append(more, m.discarded, m.discardedAdmitted)
	case usedWhenAdmitted:
		more = append(more, m.discarded, m.admitted, m.lessAdmitted)
	}
	for _, sums := range more {
		for f, s := range sums {
			add(all, f, &s.amount, s.events)
		}
	}
	return all
}

func (x *pass) compareUsed(ctx context.Context, tx pgx.Tx) error {
	all, err := x.candidates(ctx, tx, x.entitlementUsage, "entitlement_reads", events.GroupEntitlements)
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	for _, g := range all {
		var f figure
		var amount string
		used := x.figures.usedBy(g.version)
		err := each(ctx, tx, usedSQL, []any{g.number, x.p}, []any{&f.tenant, &f.feature, &f.period, &amount}, func() error {
			x.entitlementUsage.n++
			x.compareFigure(x.entitlementUsage, used, &g, f, amount, -1)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read entitlement_usage: %w", err)
		}
		x.missing(x.entitlementUsage, used, &g)
	}
	return nil
}
