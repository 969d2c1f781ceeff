package verify

import (
	"context"
	"fmt"
	"math/big"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// reconcilesWithin is the time that a flip of generations has to be reconciled with the closed periods.
const reconcilesWithin = "10 seconds"

const (
	flipsSQL = `SELECT tenant_id FROM sagas WHERE kind = 'period_reconcile' AND ended_at IS NULL AND created_at > now() - interval '` +
		reconcilesWithin + `'`

	// The figures that readers of the closed periods see.
	closedFiguresSQL = `SELECT k.tenant, k.period, g.generation, g.fold_version, coalesce(u.feature, ''), coalesce(u.subscription_id,
		k.tenant), coalesce(u.amount, 0)::text, coalesce(u.event_count, 0)
 FROM unnest($1::uuid[], $2::text[]) AS k (tenant, period)
 CROSS JOIN LATERAL (SELECT p.generation FROM projection_pointers p WHERE p.projection = 'usage_aggregates' AND p.undone_flip IS NULL
  AND p.tenant_id IN (k.tenant, '00000000-0000-0000-0000-000000000000') AND p.period_key IN (k.period, '') ORDER BY p.flip DESC
  LIMIT 1) live
 JOIN projection_generations g ON g.projection = 'usage_aggregates' AND g.generation = live.generation
 LEFT JOIN usage_aggregates u ON u.generation = g.generation AND u.tenant_id = k.tenant AND u.period_key = k.period`
)

// compareClosed compares each figure of a closed period with its frozen figure and its adjustments.
func (x *pass) compareClosed(ctx context.Context, tx pgx.Tx) error {
	flipped := map[uuid.UUID]bool{}
	var tenant uuid.UUID
	if err := each(ctx, tx, flipsSQL, nil, []any{&tenant}, func() error { flipped[tenant] = true; return nil }); err != nil {
		return fmt.Errorf("read the reconciliations: %w", err)
	}
	var tenants []uuid.UUID
	var names []string
	for k, p := range x.periods.of {
		switch n := p.present(); {
		case n == nil:
		case flipped[k.tenant] || flipped[uuid.Nil]:
			x.closedPeriods.add(1,
				"closed periods not compared: a promotion or rollback in the last "+reconcilesWithin+" is not reconciled")
		case n.logic != logicV1:
			x.closedPeriods.add(1, "closed periods not compared: frozen by an unknown version")
		default:
			tenants, names = append(tenants, k.tenant), append(names, k.period)
		}
	}
	rows, err := x.closedFigures(ctx, tx, tenants, names)
	if err != nil {
		return fmt.Errorf("read the figures of closed periods: %w", err)
	}
	for i, tenant := range tenants {
		if of, ok := rows[periodKey{tenant, names[i]}]; ok {
			x.compareLines(x.periods.of[periodKey{tenant, names[i]}].present(), of)
		}
	}
	return nil
}

// closedFigures returns the figures of periods; those of a live generation with an unknown fold are missing.
func (x *pass) closedFigures(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID, names []string) (map[periodKey]map[figure]*sum, error) {
	found := map[periodKey]map[figure]*sum{}
	var k periodKey
	var generation int
	var fold, feature, amount string
	var subscription uuid.UUID
	var events int64
	return found, each(ctx, tx, closedFiguresSQL, []any{tenants, names}, []any{&k.tenant, &k.period, &generation, &fold, &feature,
		&subscription, &amount, &events}, func() error {
		if fold != logicV1 {
			x.closedPeriods.note("closed periods by generation %d, by %s, are not compared", generation, fold)
			return nil
		}
		if found[k] == nil {
			found[k] = map[figure]*sum{}
		}
		if feature != "" {
			add(found[k], figure{k.tenant, subscription, feature, k.period}, bigOf(amount), events)
		}
		return nil
	})
}

// compareLines compares the figures of a closed period, line by line.
func (x *pass) compareLines(n *frozenSnapshot, rows map[figure]*sum) {
	want := map[figure]*sum{}
	for i := range n.lines {
		l := &n.lines[i]
		add(want, n.figureOf(l.Feature, l.SubscriptionID), bigOf(l.Amount), l.EventCount)
	}
	for _, a := range x.periods.adjusted.bySnapshot[n] {
		if a.state != "VOID" && (a.kind == kindRebuild || x.periods.behind[a.recorded] > 0) {
			add(want, a.of, bigOf(a.amount), a.count)
		}
	}
	for f, is := range rows {
		should := want[f]
		if should == nil {
			should = new(sum)
		}
		delete(want, f)
		x.compareLine(n, f, is, should)
	}
	for f, should := range want {
		x.compareLine(n, f, new(sum), should)
	}
}

func (x *pass) compareLine(n *frozenSnapshot, f figure, is, should *sum) {
	x.closedPeriods.n++
	if is.amount.Cmp(&should.amount) != 0 || is.events != should.events {
		var differs big.Int
		differs.Sub(&is.amount, &should.amount)
		x.closedPeriods.fault("%s is %s in %d events, snapshot %d and its adjustments are %s in %d: unreconciled %s", f, &is.amount,
			is.events, n.number, &should.amount, should.events, &differs)
	}
}
