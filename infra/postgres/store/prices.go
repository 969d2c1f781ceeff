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
	return t.exec("price", `INSERT INTO prices (`+priceColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7)
 ON CONFLICT (key) DO UPDATE SET name = excluded.name, currency = excluded.currency, model = excluded.model, micro_units = excluded.micro_units,
  package_size = excluded.package_size, tiers = excluded.tiers`, p.Key, p.Name, p.Currency, p.Model, p.MicroUnits, p.PackageSize, tiers)
}
