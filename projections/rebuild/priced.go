package rebuild

import (
	"cmp"
	"context"
	"math/big"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections/prices"
)

// DiffCharge is what the two figures of a key cost in a currency. A missing row costs nothing.
type DiffCharge struct {
	Price    string       `json:"price" doc:"The key of the price of the last line."`
	Currency string       `json:"currency" doc:"ISO 4217." example:"EUR"`
	Live     prices.Money `json:"live" doc:"The charge of the live figure."`
	Rebuilt  prices.Money `json:"rebuilt" doc:"The charge of the rebuilt figure."`
	Delta    prices.Money `json:"delta" doc:"rebuilt less live."`
}

// ChargeSum is the sum of charges in a currency.
type ChargeSum struct {
	TenantID *uuid.UUID   `json:"tenantId,omitempty" doc:"Left out for the sum of all tenants."`
	Currency string       `json:"currency" doc:"ISO 4217." example:"EUR"`
	Live     prices.Money `json:"live" doc:"The charge of the live figures."`
	Rebuilt  prices.Money `json:"rebuilt" doc:"The charge of the rebuilt figures."`
	Delta    prices.Money `json:"delta" doc:"rebuilt less live."`
	Keys     int64        `json:"keys" doc:"The number of keys with a price."`
}

// pricedPage is the number of rows that are priced at once.
const pricedPage = 1000

// price sets the charges of rows: of the lines of their subscriptions, each by its own price, on the axes of the whole periods.
func (r *Reads) price(ctx context.Context, tx pgx.Tx, c *Comparison, rows []DiffRow) error {
	var tenants []uuid.UUID
	var periods []prices.Period
	for i := range rows {
		row := &rows[i]
		if !slices.Contains(tenants, row.TenantID) {
			tenants = append(tenants, row.TenantID)
		}
		for _, p := range c.periodsOf(row) {
			if !slices.Contains(periods, p) {
				periods = append(periods, p)
			}
		}
	}
	histories, err := prices.ReadHistories(ctx, tx, tenants)
	if err != nil || len(rows) == 0 {
		return err
	}
	sums, err := r.Sums.Of(ctx, tx, periods, histories)
	if err != nil {
		return err
	}
	lines := map[prices.Period][]domain.ChargeLine{}
	var named []domain.PriceVersion
	for _, p := range periods {
		lines[p] = histories[p.TenantID].Lines(sums[p], prices.Latest, p.PeriodKey)
		named = append(named, domain.PricesOf(lines[p])...)
	}
	versions, err := prices.Versions(ctx, tx, named)
	if err != nil {
		return err
	}
	for _, p := range periods {
		if err := domain.ChargeLines(lines[p], versions); err != nil {
			return err
		}
	}
	for i := range rows {
		sides := c.periodsOf(&rows[i])
		rows[i].charge(lines[sides[0]], lines[sides[1]])
	}
	return nil
}

// periodsOf returns the period of a row in the live and in the rebuilt generation.
func (c *Comparison) periodsOf(row *DiffRow) [2]prices.Period {
	live, flip := 0, -1
	for i := range c.base {
		p := &c.base[i]
		if (p.TenantID == uuid.Nil || p.TenantID == row.TenantID) && (p.PeriodKey == "" || p.PeriodKey == *row.PeriodKey) && p.flip > flip {
			live, flip = p.Generation, p.flip
		}
	}
	return [2]prices.Period{{TenantID: row.TenantID, PeriodKey: *row.PeriodKey, Generation: live},
		{TenantID: row.TenantID, PeriodKey: *row.PeriodKey, Generation: c.Rebuild.Generation}}
}

// charge sets the charges of a row, one for each currency: that of the last line first.
func (d *DiffRow) charge(live, rebuilt []domain.ChargeLine) {
	sums := map[string]*[2]big.Int{}
	var order []string
	price := map[string]string{}
	for side, lines := range [][]domain.ChargeLine{live, rebuilt} {
		for i := range lines {
			l := &lines[i]
			if l.Rated == nil || l.Feature != d.Feature || l.SubscriptionID != *d.SubscriptionID {
				continue
			}
			currency := l.Rated.Currency
			if sums[currency] == nil {
				sums[currency] = new([2]big.Int)
				order = append(order, currency)
			}
			price[currency] = l.Price
			sums[currency][side].Add(&sums[currency][side], l.MicroUnits)
		}
	}
	for _, currency := range order {
		of := sums[currency]
		d.Charges = append(d.Charges, DiffCharge{price[currency], currency, prices.MoneyOf(&of[0]), prices.MoneyOf(&of[1]),
			prices.MoneyOf(new(big.Int).Sub(&of[1], &of[0]))})
	}
	if len(d.Charges) > 0 {
		d.Charge, d.Charges = &d.Charges[len(d.Charges)-1], d.Charges[:len(d.Charges)-1]
	}
}

// eachPriced passes the rows with their charges, page by page of one snapshot.
func (r *Reads) eachPriced(ctx context.Context, tx pgx.Tx, c *Comparison, q DiffQuery, take func(DiffRow) error) error {
	for {
		var page []DiffRow
		err := c.rows(ctx, tx, q, pricedPage, func(row DiffRow) error {
			page = append(page, row)
			return nil
		})
		if err != nil {
			return err
		}
		if err := r.price(ctx, tx, c, page); err != nil {
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
func (r *Reads) charges(ctx context.Context, tx pgx.Tx, c *Comparison, q DiffQuery, t *DiffTotals) error {
	q.After, t.Unpriced = "", new(int64)
	sums := map[chargeKey]*chargeSums{}
	err := r.eachPriced(ctx, tx, c, q, func(row DiffRow) error {
		if row.Charge == nil {
			*t.Unpriced++
			return nil
		}
		for _, charge := range append(row.Charges, *row.Charge) {
			addCharge(sums, row.TenantID, &charge)
		}
		return nil
	})
	if err == nil {
		t.addCharges(sums)
	}
	return err
}

// addCharge adds a charge to the sums of all tenants and of its own.
func addCharge(sums map[chargeKey]*chargeSums, of uuid.UUID, charge *DiffCharge) {
	for _, tenant := range []uuid.UUID{uuid.Nil, of} {
		key := chargeKey{tenant, charge.Currency}
		if sums[key] == nil {
			sums[key] = new(chargeSums)
		}
		sums[key].live.Add(&sums[key].live, charge.Live.Amount())
		sums[key].rebuilt.Add(&sums[key].rebuilt, charge.Rebuilt.Amount())
		sums[key].keys++
	}
}

// addCharges orders the sums: of all tenants by currency, of tenants by the greatest change.
func (t *DiffTotals) addCharges(sums map[chargeKey]*chargeSums) {
	changes := map[*ChargeSum]*big.Int{}
	var byTenant []*ChargeSum
	for key, s := range sums {
		delta := new(big.Int).Sub(&s.rebuilt, &s.live)
		sum := ChargeSum{Currency: key.currency, Live: prices.MoneyOf(&s.live), Rebuilt: prices.MoneyOf(&s.rebuilt),
			Delta: prices.MoneyOf(delta), Keys: s.keys}
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
		return cmp.Or(changes[b].Cmp(changes[a]), strings.Compare(a.TenantID.String(), b.TenantID.String()),
			strings.Compare(a.Currency, b.Currency))
	})
	for _, sum := range byTenant[:min(len(byTenant), maxSums)] {
		t.ChargesByTenant = append(t.ChargesByTenant, *sum)
	}
}
