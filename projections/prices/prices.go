// Package prices reads the inputs of charges: sums by grant, the histories that name the grants' prices, and versions of prices.
// The package only reads, and decides no charge: domain.ChargeLines does.
package prices

import (
	"context"
	"encoding/json"
	"math"
	"math/big"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections/query"
)

// Period is a period of a tenant in a generation of the figures, 0: that which is live.
type Period struct {
	TenantID   uuid.UUID
	PeriodKey  string
	Generation int
}

// Sums reads the sums of usage by grant.
type Sums interface {
	// Of returns the sums of periods. The histories are those of the tenants.
	Of(ctx context.Context, tx pgx.Tx, periods []Period, histories map[uuid.UUID]domain.History) (map[Period][]domain.GrantSum, error)
	// AsOf returns the sums of a period as of a position of the log.
	AsOf(ctx context.Context, tx pgx.Tx, period Period, position int64, h domain.History) ([]domain.GrantSum, error)
	// OfVerdicts returns the sums of verdicts, by their positions.
	OfVerdicts(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, positions []int64, h domain.History) ([]domain.GrantSum, error)
}

const readHistories = `SELECT tenant_id, from_position, effective_from, snapshot FROM subscription_history
	WHERE tenant_id = ANY ($1::uuid[]) ORDER BY tenant_id, from_position`

// ReadHistories reads the changes of tenants' subscriptions.
func ReadHistories(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID) (map[uuid.UUID]domain.History, error) {
	found := make(map[uuid.UUID]domain.History, len(tenants))
	return found, query.Run(ctx, tx, query.New(readHistories, []any{tenants}, query.Each(func(rows pgx.Rows) error {
		var tenant uuid.UUID
		var e domain.HistoryEntry
		var snapshot []byte
		err := rows.Scan(&tenant, &e.FromPosition, &e.EffectiveFrom, &snapshot)
		if err == nil && snapshot != nil {
			err = json.Unmarshal(snapshot, &e.Subscription)
		}
		found[tenant] = append(found[tenant], e)
		return err
	})))
}

const readVersions = `SELECT v.key, v.version, v.name, v.currency, v.model, v.micro_units, v.package_size, v.tiers
FROM unnest($1::text[], $2::bigint[]) AS k (key, version) JOIN prices v USING (key, version)`

// Versions reads versions of prices.
func Versions(ctx context.Context, tx pgx.Tx, list []domain.PriceVersion) (map[domain.PriceVersion]*domain.Price, error) {
	found := make(map[domain.PriceVersion]*domain.Price, len(list))
	if len(list) == 0 {
		return found, nil
	}
	var keys []string
	var numbers []int64
	for _, v := range list {
		keys, numbers = append(keys, v.Key), append(numbers, v.Version)
	}
	return found, query.Run(ctx, tx, query.New(readVersions, []any{keys, numbers}, query.Each(func(rows pgx.Rows) error {
		p, err := pgx.RowToStructByName[domain.Price](rows)
		found[domain.PriceVersion{Key: p.Key, Version: p.Version}] = &p
		return err
	})))
}

// Latest is the position of terms as they are known now.
const Latest = math.MaxInt64

// Charge returns the lines of sums with their charges, as known at a position.
func Charge(ctx context.Context, tx pgx.Tx, h domain.History, sums []domain.GrantSum, position int64,
	periodKey string) ([]domain.ChargeLine, error) {
	lines := h.Lines(sums, position, periodKey)
	versions, err := Versions(ctx, tx, domain.PricesOf(lines))
	if err != nil {
		return nil, err
	}
	return lines, domain.ChargeLines(lines, versions)
}

// Money is an exact amount of money.
type Money struct {
	MicroUnits json.Number `json:"microUnits" doc:"Millionths of the currency's unit."`
	Decimal    string      `json:"decimal" doc:"The same as a decimal of the currency's unit." example:"28.60"`

	amount *big.Int
}

// Amount returns the micro-units.
func (m *Money) Amount() *big.Int { return m.amount }

// MoneyOf returns an amount of micro-units.
func MoneyOf(n *big.Int) Money {
	return Money{json.Number(n.String()), domain.DecimalOfMicroUnits(n), new(big.Int).Set(n)}
}
