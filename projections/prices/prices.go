// Package prices finds the prices of lines, and sums up what they cost. A line is an amount of a feature that a subscription used
// in a period. The package changes nothing, and decides no charge: domain.Price does.
package prices

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections/query"
)

// Line names a line.
type Line struct {
	TenantID       uuid.UUID
	SubscriptionID uuid.UUID
	Feature        string
	PeriodKey      string
}

// The price that a line's subscription names is that of its last snapshot that grants the feature and took effect before the period's
// end, so that a later change of the plan does not change an earlier period. If all took effect later, the first counts: usage of a
// time before the subscription. Positions are above 0, so that snapshots of before sort first.
const readPrices = `
SELECT k.n, p.key, p.name, p.currency, p.model, p.micro_units, p.package_size, p.tiers
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::timestamptz[]) WITH ORDINALITY AS k (tenant_id, subscription_id, feature, ends, n)
CROSS JOIN LATERAL (
  SELECT g.value ->> 'price' AS key
  FROM (SELECT h.snapshot, h.from_position, k.ends IS NULL OR h.effective_from < k.ends AS before FROM subscription_history h
    WHERE h.tenant_id = k.tenant_id AND h.snapshot ->> 'id' = k.subscription_id) h
  CROSS JOIN LATERAL json_array_elements(h.snapshot -> 'entitlements') AS g (value)
  WHERE g.value ->> 'feature' = k.feature
  ORDER BY CASE WHEN h.before THEN -h.from_position ELSE h.from_position END LIMIT 1) named
JOIN prices p ON p.key = named.key`

// Of returns the price of each line as it is now, nil for a line without one.
func Of(ctx context.Context, tx pgx.Tx, lines []Line) ([]*domain.Price, error) {
	found := make([]*domain.Price, len(lines))
	if len(lines) == 0 {
		return found, nil
	}
	var tenants []uuid.UUID
	var subscriptions, features []string
	var ends []*time.Time
	for _, l := range lines {
		tenants, subscriptions, features = append(tenants, l.TenantID), append(subscriptions, l.SubscriptionID.String()), append(features, l.Feature)
		var end *time.Time
		if _, at, ok := domain.PeriodBounds(l.PeriodKey); ok {
			end = &at
		}
		ends = append(ends, end)
	}
	return found, query.Run(ctx, tx, query.New(readPrices, []any{tenants, subscriptions, features, ends}, query.Each(func(rows pgx.Rows) error {
		var n int
		var p domain.Price
		var tiers []byte
		if err := rows.Scan(&n, &p.Key, &p.Name, &p.Currency, &p.Model, &p.MicroUnits, &p.PackageSize, &tiers); err != nil {
			return err
		}
		if err := json.Unmarshal(tiers, &p.Tiers); err != nil {
			return fmt.Errorf("decode the tiers of %s: %w", p.Key, err)
		}
		found[n-1] = &p
		return nil
	})))
}

// Money is an exact amount of money.
type Money struct {
	MicroUnits json.Number `json:"microUnits" doc:"Millionths of the currency's unit."`
	Decimal    string      `json:"decimal" doc:"The same as a decimal of the currency's unit." example:"28.60"`
}

// MoneyOf returns an amount of micro-units.
func MoneyOf(n *big.Int) Money {
	return Money{json.Number(n.String()), domain.DecimalOfMicroUnits(n)}
}

// Integer returns an exact amount; nil is 0, as the row that it is of is missing.
func Integer(n *json.Number) (*big.Int, error) {
	if n == nil {
		return new(big.Int), nil
	}
	amount, ok := new(big.Int).SetString(n.String(), 10)
	if !ok {
		return nil, fmt.Errorf("the amount %q is no integer", n.String())
	}
	return amount, nil
}
