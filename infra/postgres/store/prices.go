package store

import (
	"encoding/json"
	"fmt"

	"github.com/meterplex/meterplex/domain"
)

func (t *changeTx) Price(key string) (*domain.Price, error) {
	return scanPrice(t.tx.QueryRow(t.ctx, `SELECT `+priceColumns+` FROM prices WHERE key = $1`, key))
}

func (t *changeTx) SavePrice(p domain.Price) error {
	if p.Tiers == nil {
		p.Tiers = []domain.PriceTier{}
	}
	tiers, err := json.Marshal(p.Tiers)
	if err != nil {
		return fmt.Errorf("encoding a price: %w", err)
	}
	args := []any{p.Key, p.Version, p.Name, p.Currency, p.Model, p.MicroUnits, p.PackageSize, tiers}
	t.queue("version of a price", `INSERT INTO price_versions (`+priceColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, args...)
	return t.exec("price", `INSERT INTO prices (`+priceColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
 ON CONFLICT (key) DO UPDATE SET version = excluded.version, name = excluded.name, currency = excluded.currency, model = excluded.model,
  micro_units = excluded.micro_units, package_size = excluded.package_size, tiers = excluded.tiers`, args...)
}
