package periods

import (
	"context"
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/prices"
	"github.com/meterplex/meterplex/projections/query"
)

// The amounts that charges are computed from.
const (
	BasisBillable = "billable" // of a frozen snapshot: frozen and approved
	BasisNet      = "net"      // of a period that is not closed: the live figure
)

// Charge is the price of a line. Price and Charge are nil for a line whose subscription names no price.
type Charge struct {
	Feature        string        `json:"feature"`
	SubscriptionID uuid.UUID     `json:"subscriptionId"`
	Amount         json.Number   `json:"amount" doc:"billable of a closed period, net of any other."`
	Price          *domain.Price `json:"price" doc:"The price by which the line is rated; null: the line has none."`
	Currency       *string       `json:"currency" doc:"Of the charge; null without a price."`
	MicroUnits     *json.Number  `json:"microUnits" nullable:"true" doc:"The charge in millionths of the currency's unit; null without a price."`
	Decimal        *string       `json:"decimal" doc:"The charge as a decimal of the currency's unit; null without a price." example:"28.60"`
}

// ChargeTotal is the sum of the charges in a currency.
type ChargeTotal struct {
	Currency string `json:"currency" doc:"ISO 4217." example:"EUR"`
	prices.Money
	Lines int `json:"lines" doc:"Lines that are summed up."`
}

// Charges is a period with a page of its charges. Totals and Unpriced are of all pages.
type Charges struct {
	Period
	AsOf     events.Position
	Next     string // the place of the next page, "" on the last
	Basis    string
	Lines    []Charge
	Totals   []ChargeTotal
	Unpriced int
}

// ChargesQuery asks for a page of charges. Live asks for the live figures, also if the period is closed by now.
type ChargesQuery struct {
	PeriodQuery
	Live bool
}

// Lines of the live generation, whose amounts change.
const readLiveLines = `
SELECT u.feature, u.subscription_id, u.amount::text FROM usage_aggregates u
WHERE u.generation = live_generation('` + projections.ProjectionUsage + `', $1, $2) AND u.tenant_id = $1 AND u.period_key = $2
  AND (u.feature, u.subscription_id) > ($3::text, $4::uuid) ORDER BY u.feature, u.subscription_id LIMIT $5`

// Charges returns what the lines of a period cost by the prices of now, or refuses with snapshot_not_found. A closed period and a
// frozen snapshot are charged by their billable amounts, any other by its live ones.
func (r *Reads) Charges(ctx context.Context, q ChargesQuery) (c Charges, err error) {
	first, err := placeOf(q.After)
	if err != nil {
		return c, err
	}
	c.Lines, c.Totals = []Charge{}, []ChargeTotal{}
	err = r.Within(ctx, query.Viewer{Operator: true}, func(tx pgx.Tx) error {
		var err error
		if c.Period, c.AsOf, err = standing(ctx, tx, q.PeriodQuery); err != nil {
			return err
		}
		if c.Basis = BasisNet; c.FrozenPosition != nil && !q.Live && (q.Snapshot != 0 || c.State == domain.StateClosed) {
			c.Basis = BasisBillable
		}
		return c.read(ctx, tx, first, q.Limit)
	})
	return c, err
}

// read rates all lines, for the totals, and keeps the page.
func (c *Charges) read(ctx context.Context, tx pgx.Tx, first place, limit int) error {
	sums := map[string]*big.Int{}
	lines := map[string]int{}
	for after := new(place); after != nil; {
		page, next, err := c.page(ctx, tx, *after)
		if err != nil {
			return err
		}
		for i := range page {
			l := &page[i]
			if l.Price == nil {
				c.Unpriced++
			} else {
				charge, err := l.rate()
				if err != nil {
					return err
				}
				sum := sums[l.Price.Currency]
				if sum == nil {
					sum = new(big.Int)
					sums[l.Price.Currency] = sum
				}
				sum.Add(sum, charge)
				lines[l.Price.Currency]++
			}
			c.keep(*l, first, limit)
		}
		after = next
	}
	for currency, sum := range sums {
		c.Totals = append(c.Totals, ChargeTotal{currency, prices.MoneyOf(sum), lines[currency]})
	}
	slices.SortFunc(c.Totals, func(a, b ChargeTotal) int { return strings.Compare(a.Currency, b.Currency) })
	return nil
}

// keep adds a line to the page of the answer, if it is in it.
func (c *Charges) keep(l Charge, first place, limit int) {
	switch at := (place{l.Feature, l.SubscriptionID}); {
	case at.compare(first) <= 0 || c.Next != "":
	case len(c.Lines) < limit:
		c.Lines = append(c.Lines, l)
	default:
		last := &c.Lines[limit-1]
		c.Next = (&place{last.Feature, last.SubscriptionID}).String()
	}
}

// compare orders lines as the tables do: by the bytes of the feature, then by the subscription.
func (p place) compare(o place) int {
	if n := strings.Compare(p.feature, o.feature); n != 0 {
		return n
	}
	return slices.Compare(p.subscription[:], o.subscription[:])
}

// rate sets the charge of a line that has a price.
func (l *Charge) rate() (*big.Int, error) {
	amount, err := prices.Integer(&l.Amount)
	if err != nil {
		return nil, err
	}
	charge := l.Price.Charge(amount)
	money := prices.MoneyOf(charge)
	l.Currency, l.MicroUnits, l.Decimal = &l.Price.Currency, &money.MicroUnits, &money.Decimal
	return charge, nil
}

// page reads the lines after a place with their prices.
func (c *Charges) page(ctx context.Context, tx pgx.Tx, after place) (list []Charge, next *place, err error) {
	if c.Basis == BasisBillable {
		var lines []PeriodLine
		if lines, next, err = page(ctx, tx, &c.Period, after, exportPage); err != nil {
			return nil, nil, err
		}
		for i := range lines {
			list = append(list, Charge{Feature: lines[i].Feature, SubscriptionID: lines[i].SubscriptionID, Amount: lines[i].Billable})
		}
	} else if list, next, err = c.live(ctx, tx, after); err != nil {
		return nil, nil, err
	}
	named := make([]prices.Line, len(list))
	for i := range list {
		named[i] = prices.Line{TenantID: c.TenantID, SubscriptionID: list[i].SubscriptionID, Feature: list[i].Feature, PeriodKey: c.PeriodKey}
	}
	found, err := prices.Of(ctx, tx, named)
	for i := range found {
		list[i].Price = found[i]
	}
	return list, next, err
}

func (c *Charges) live(ctx context.Context, tx pgx.Tx, after place) (list []Charge, next *place, err error) {
	args := []any{c.TenantID, c.PeriodKey, after.feature, after.subscription, exportPage}
	err = query.Run(ctx, tx, query.New(readLiveLines, args, query.Each(func(rows pgx.Rows) error {
		var l Charge
		var amount string
		err := rows.Scan(&l.Feature, &l.SubscriptionID, &amount)
		l.Amount = json.Number(amount)
		list = append(list, l)
		return err
	})))
	if n := len(list); n == exportPage {
		next = &place{list[n-1].Feature, list[n-1].SubscriptionID}
	}
	return list, next, err
}
