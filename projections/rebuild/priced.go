package rebuild

import (
	"cmp"
	"context"
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/projections/prices"
)

// DiffCharge is what the two figures of a key cost by the price of the line. A missing row costs nothing.
type DiffCharge struct {
	Price    string       `json:"price" doc:"The key of the price."`
	Currency string       `json:"currency" doc:"ISO 4217." example:"EUR"`
	Live     prices.Money `json:"live" doc:"What the live figure costs."`
	Rebuilt  prices.Money `json:"rebuilt" doc:"What the rebuilt figure costs."`
	Delta    prices.Money `json:"delta" doc:"rebuilt less live."`
}

// ChargeSum is the sum of charges in a currency.
type ChargeSum struct {
	TenantID *uuid.UUID   `json:"tenantId,omitempty" doc:"Left out for the sum of all tenants."`
	Currency string       `json:"currency" doc:"ISO 4217." example:"EUR"`
	Live     prices.Money `json:"live" doc:"What the live figures cost."`
	Rebuilt  prices.Money `json:"rebuilt" doc:"What the rebuilt figures cost."`
	Delta    prices.Money `json:"delta" doc:"rebuilt less live."`
	Keys     int64        `json:"keys" doc:"The number of keys with a price."`
}

// pricedPage is the number of rows that are priced at once.
const pricedPage = 1000

// price sets the charges of rows.
func price(ctx context.Context, tx pgx.Tx, rows []DiffRow) error {
	lines := make([]prices.Line, len(rows))
	for i := range rows {
		lines[i] = prices.Line{TenantID: rows[i].TenantID, SubscriptionID: *rows[i].SubscriptionID, Feature: rows[i].Feature, PeriodKey: *rows[i].PeriodKey}
	}
	found, err := prices.Of(ctx, tx, lines)
	if err != nil {
		return err
	}
	for i, p := range found {
		if p == nil {
			continue
		}
		live, rebuilt, err := rows[i].amounts()
		if err != nil {
			return err
		}
		before, after := p.Charge(live), p.Charge(rebuilt)
		rows[i].Charge = &DiffCharge{p.Key, p.Currency, prices.MoneyOf(before), prices.MoneyOf(after), prices.MoneyOf(new(big.Int).Sub(after, before))}
	}
	return nil
}

// amounts returns the figures of a row, 0 for a missing row.
func (d *DiffRow) amounts() (live, rebuilt *big.Int, err error) {
	number := func(raw json.RawMessage) *json.Number {
		if string(raw) == "null" {
			return nil
		}
		n := json.Number(raw)
		return &n
	}
	if live, err = prices.Integer(number(d.Live)); err != nil {
		return nil, nil, err
	}
	rebuilt, err = prices.Integer(number(d.Rebuilt))
	return live, rebuilt, err
}

// eachPriced passes the rows with their charges, page by page of one snapshot.
func (c *Comparison) eachPriced(ctx context.Context, tx pgx.Tx, q DiffQuery, take func(DiffRow) error) error {
	for {
		var page []DiffRow
		err := c.rows(ctx, tx, q, pricedPage, func(row DiffRow) error {
			page = append(page, row)
			return nil
		})
		if err != nil {
			return err
		}
		if err := price(ctx, tx, page); err != nil {
			return err
		}
		for _, row := range page {
			if err := take(row); err != nil {
				return err
			}
		}
		if len(page) < pricedPage {
			return nil
		}
		q.After = diffCursor(&page[len(page)-1])
	}
}

// chargeKey is what a sum of charges is of; uuid.Nil is all tenants.
type chargeKey struct {
	tenant   uuid.UUID
	currency string
}

type chargeSums struct {
	live, rebuilt big.Int
	keys          int64
}

// charges adds the sums of the charges of all rows to the totals.
func (c *Comparison) charges(ctx context.Context, tx pgx.Tx, q DiffQuery, t *DiffTotals) error {
	q.After, t.Unpriced = "", new(int64)
	sums := map[chargeKey]*chargeSums{}
	err := c.eachPriced(ctx, tx, q, func(row DiffRow) error {
		if row.Charge == nil {
			*t.Unpriced++
			return nil
		}
		live, err := prices.Integer(&row.Charge.Live.MicroUnits)
		if err != nil {
			return err
		}
		rebuilt, err := prices.Integer(&row.Charge.Rebuilt.MicroUnits)
		if err != nil {
			return err
		}
		for _, tenant := range []uuid.UUID{uuid.Nil, row.TenantID} {
			key := chargeKey{tenant, row.Charge.Currency}
			if sums[key] == nil {
				sums[key] = new(chargeSums)
			}
			sums[key].live.Add(&sums[key].live, live)
			sums[key].rebuilt.Add(&sums[key].rebuilt, rebuilt)
			sums[key].keys++
		}
		return nil
	})
	if err == nil {
		t.addCharges(sums)
	}
	return err
}

// addCharges orders the sums: of all tenants by currency, of tenants by the greatest change.
func (t *DiffTotals) addCharges(sums map[chargeKey]*chargeSums) {
	changes := map[*ChargeSum]*big.Int{}
	var byTenant []*ChargeSum
	for key, s := range sums {
		delta := new(big.Int).Sub(&s.rebuilt, &s.live)
		sum := ChargeSum{Currency: key.currency, Live: prices.MoneyOf(&s.live), Rebuilt: prices.MoneyOf(&s.rebuilt), Delta: prices.MoneyOf(delta), Keys: s.keys}
		if key.tenant == uuid.Nil {
			t.Charges = append(t.Charges, sum)
			continue
		}
		sum.TenantID = &key.tenant
		byTenant = append(byTenant, &sum)
		changes[&sum] = delta.Abs(delta)
	}
	slices.SortFunc(t.Charges, func(a, b ChargeSum) int { return strings.Compare(a.Currency, b.Currency) })
	slices.SortFunc(byTenant, func(a, b *ChargeSum) int {
		return cmp.Or(changes[b].Cmp(changes[a]), strings.Compare(a.TenantID.String(), b.TenantID.String()), strings.Compare(a.Currency, b.Currency))
	})
	for _, sum := range byTenant[:min(len(byTenant), maxSums)] {
		t.ChargesByTenant = append(t.ChargesByTenant, *sum)
	}
}
