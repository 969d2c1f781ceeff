package verify

import (
	"context"
	"fmt"
	"math/big"

	"github.com/jackc/pgx/v5"
)

// usedSQL computes the partition from the tenant: entitlement_usage has no column for it.
const usedSQL = `SELECT tenant_id, feature, period_key, used::text, held::text FROM entitlement_usage
 WHERE generation = $1 AND CASE WHEN tenant_id = '00000000-0000-0000-0000-000000000000' THEN 0
  ELSE get_byte(sha256(convert_to(tenant_id::text, 'UTF8')), 0) % 32 END = $2`

// entitlementsV1 is the fold that counts admitted usage when it is recorded, leaves it in discarded dead letters, and sums the held
// amounts.
const entitlementsV1 = "entitlement_reads/v1"

// countHeld adds an event about a reservation to the held amounts; a sign of -1 subtracts it. Commits are a step of countAdmitted.
func (m *figureSums) countHeld(r *row, s *content, err error, sign int64) {
	direction := sign
	switch r.subject {
	case reservationHeld:
	case reservationReleased, reservationExpired:
		direction = -sign
	default:
		return
	}
	amount, ok := amountOf(s, direction)
	if err != nil || !ok || s.FeatureType != "QUOTA" { // an unreadable one is a fault of reservationLives
		return
	}
	if r.position <= m.usedUpTo && (sign > 0 || m.failedUsed[r.position]) {
		m.hold(figure{tenant: r.tenant, feature: s.Feature, period: s.PeriodKey}, amount, sign)
	}
}

// hold adds an amount to the held ones. A hold makes a row without usage.
func (m *figureSums) hold(of figure, amount *big.Int, sign int64) {
	add(m.held, of, amount, sign)
	add(m.used, of, new(big.Int), sign)
}

// heldOf returns the amount that a row must hold.
func (m *figureSums) heldOf(of figure) string {
	if s := m.held[of]; s != nil {
		return s.amount.String()
	}
	return "0"
}

func (x *pass) compareUsed(ctx context.Context, tx pgx.Tx) error {
	all, err := x.candidates(ctx, tx, x.entitlementUsage, "entitlement_reads", entitlements)
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	for _, g := range all {
		var f figure
		var amount, held string
		err := each(ctx, tx, usedSQL, []any{g.number, x.p}, []any{&f.tenant, &f.feature, &f.period, &amount, &held}, func() error {
			x.entitlementUsage.n++
			x.compareFigure(x.entitlementUsage, x.figures.used, &g, f, amount, -1)
			want := x.figures.heldOf(f)
			x.entitlementUsage.expect(held == want || g.replacedBy(f) != 0, "generation %d has %s held for %s, the log has %s", g.number,
				held, f, want)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read entitlement_usage: %w", err)
		}
		x.missing(x.entitlementUsage, x.figures.used, &g)
	}
	return nil
}
