package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/projections/query"
)

// DefaultTotalsEvery is the number of verdicts of a figure after which its running totals are
// written, counted by subscription, at the end of the batch that contains the last of them.
const DefaultTotalsEvery = 1024

// figure is a figure of all subscriptions. Its running totals have one position.
type figure struct {
	tenant          uuid.UUID
	feature, period string
}

func figureOf(key Key) figure { return figure{key.TenantID, key.Feature, key.PeriodKey} }

// figures are columns of figures, each with the position up to which it is folded.
type figures struct {
	tenants           []uuid.UUID
	features, periods []string
	positions         []int64
}

// add adds the figure of a key. Keys come in their order, so that those of a figure are together.
func (f *figures) add(key Key, position int64) {
	if last := len(f.tenants) - 1; last >= 0 && figureOf(key) == (figure{f.tenants[last], f.features[last], f.periods[last]}) {
		return
	}
	f.tenants, f.features, f.periods = append(f.tenants, key.TenantID), append(f.features, key.Feature), append(f.periods, key.PeriodKey)
	f.positions = append(f.positions, position)
}

// OFFSET 0 keeps the rows of a figure to their key: a plan that was made for an empty table
// would read the whole of it.
const writeRunningTotals = `
INSERT INTO usage_running_totals (generation, partition, tenant_id, feature, period_key, position, subscription_id, amount, event_count,
last_event_at)
SELECT $1::int, a.partition, f.tenant_id, f.feature, f.period_key, f.position, a.subscription_id, a.amount, a.event_count, a.last_event_at
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::bigint[]) AS f (tenant_id, feature, period_key, position)
CROSS JOIN LATERAL (
  SELECT u.partition, u.subscription_id, u.amount, u.event_count, u.last_event_at FROM usage_aggregates u
  WHERE u.generation = $1::int AND u.tenant_id = f.tenant_id AND u.feature = f.feature AND u.period_key = f.period_key OFFSET 0) a`

// writeTotals writes the running totals of the figures, from their rows in usage_aggregates.
func (f *figures) writeTotals(ctx context.Context, tx pgx.Tx, generation int) error {
	if len(f.tenants) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, writeRunningTotals, generation, f.tenants, f.features, f.periods, f.positions); err != nil {
		return fmt.Errorf("write running totals: %w", err)
	}
	return nil
}

// Reads the last running totals of a figure up to a position, of the generation that is live for it.
const readRunningTotals = `
SELECT t.position, t.subscription_id, t.amount::text, t.event_count, t.last_event_at
FROM (SELECT live_generation('usage_aggregates', $1, $3) AS generation) g
CROSS JOIN LATERAL (
  SELECT l.position FROM usage_running_totals l
  WHERE l.generation = g.generation AND l.tenant_id = $1 AND l.feature = $2 AND l.period_key = $3 AND l.position <= $4
  ORDER BY l.position DESC LIMIT 1) last
JOIN usage_running_totals t ON t.generation = g.generation AND t.tenant_id = $1 AND t.feature = $2 AND t.period_key = $3
AND t.position = last.position`

// figureAsOf returns the sums of a figure by subscription, as of a position: the last running totals
// before it, and the verdicts since; no row if the figure began later. It reads up to 1,024 verdicts of each
// subscription of the figure, the batch that they were folded in, and those that came after the position on events
// before it (the validator's backlog then). Figures without running totals are read from their beginning; of
// a figure that began later it reads fewVerdicts.
func (t *tenantVerdicts) figureAsOf(ctx context.Context, tx pgx.Tx, feature, period string, at int64) (map[Key]*usageSum, error) {
	sums := make(map[Key]*usageSum)
	walk := t.wholeFigure(feature, period, &at)
	args := []any{t.tenant, feature, period, at}
	err := query.Run(ctx, tx, query.New(readRunningTotals, args, query.Each(func(rows pgx.Rows) error {
		sum := &usageSum{partition: t.partition, applied: 1} // not the first: a later verdict compares its time
		key := Key{TenantID: t.tenant, Feature: feature, PeriodKey: period}
		var amount string
		err := rows.Scan(&walk.after, &key.SubscriptionID, &amount, &sum.count, &sum.last)
		if _, ok := sum.amount.SetString(amount, 10); !ok {
			err = errors.Join(err, errNoInteger)
		}
		sums[key] = sum
		return err
	})))
	if err != nil {
		return nil, err
	}
	if len(sums) == 0 {
		walk.first = fewVerdicts
	}
	return sums, walk.each(ctx, tx, func(c *countedUsage, counted bool) bool {
		if counted && c.key.Feature == feature && c.key.PeriodKey == period {
			addTo(sums, t.partition, c.key, c.delta)
		}
		return true
	})
}

// Lists the figures of a tenant's live generations in the order of lists.
const readFigures = `
SELECT a.feature, a.period_key FROM usage_aggregates a
WHERE a.tenant_id = $1 AND a.generation = live_generation('usage_aggregates', $1, a.period_key)
  AND ($2 = '' OR a.feature = $2) AND ($3 = '' OR a.period_key = $3)
GROUP BY a.feature, a.period_key, a.period_start
ORDER BY coalesce(a.period_start, '-infinity') DESC, a.feature, a.period_key`

// figures lists the figures of a query, from the one of a cursor on.
func (t *tenantVerdicts) figures(ctx context.Context, tx pgx.Tx, q *AggregateQuery, after *aggregateCursor) (list []figure, err error) {
	err = query.Run(ctx, tx, query.New(readFigures, []any{t.tenant, q.Feature, q.PeriodKey}, query.Each(func(rows pgx.Rows) error {
		f := figure{tenant: t.tenant}
		err := rows.Scan(&f.feature, &f.period)
		list = append(list, f)
		return err
	})))
	if at := slices.Index(list, figure{t.tenant, after.feature, after.periodKey}); after.given && at > 0 {
		list = list[at:]
	}
	return list, err
}
