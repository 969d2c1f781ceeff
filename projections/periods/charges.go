package periods

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/prices"
	"github.com/meterplex/meterplex/projections/query"
)

// The amounts that charges are computed from.
const (
	BasisBillable = "billable" // of a frozen snapshot: frozen and approved
	BasisNet      = "net"      // of a period that is not closed: the live figure
)

// Charge is a line of charges. Price and the members of the charge are nil for a line whose grant names no price.
type Charge struct {
	Feature        string           `json:"feature"`
	SubscriptionID uuid.UUID        `json:"subscriptionId"`
	Grant          *events.Position `json:"grant" nullable:"true"`
	Status         string           `json:"status" enum:"BEFORE,ACTIVE,TRIALING"`
	From           *time.Time       `json:"from" doc:"Start of the grant, within the period."`
	To             *time.Time       `json:"to" doc:"End of the grant, within the period."`
	Amount         json.Number      `json:"amount" doc:"Of a closed period frozen and approved, of any other the live amount."`
	EventCount     int64            `json:"eventCount"`
	Price          *domain.Price    `json:"price" doc:"The version of the price by which the line is rated; null: the line has none."`
	Currency       *string          `json:"currency" doc:"Of the charge; null without a price."`
	MicroUnits     *json.Number     `json:"microUnits" nullable:"true"`
	Decimal        *string          `json:"decimal" example:"28.60"`
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
	Next     string // the cursor of the next page, "" on the last
	Basis    string
	Lines    []Charge
	Totals   []ChargeTotal
	Unpriced int
}

// ChargesQuery asks for a page of charges. Live asks for the live figures, also if the period is closed by now.
type ChargesQuery struct {
	Query
	Live bool
}

// Charges returns the cost of the lines of a period, or refuses with snapshot_not_found. A closed period and a frozen snapshot are charged
// by their billable amounts, any other by its live ones. All lines are in memory: a tenant's period has few.
func (r *Reads) Charges(ctx context.Context, q ChargesQuery) (c Charges, err error) {
	err = r.Within(ctx, query.Viewer{Operator: true}, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if c.Period, c.AsOf, err = standing(ctx, tx, q.Query); err != nil {
			return err
		}
		if c.Basis = BasisNet; c.FrozenPosition != nil && !q.Live && (q.Snapshot != 0 || c.State == domain.StateClosed) {
			c.Basis = BasisBillable
		}
		lines, err := r.chargeLines(ctx, tx, &c.Period, c.Basis)
		if err != nil {
			return err
		}
		c.sum(lines)
		c.Lines, c.Next, err = pageOfCharges(lines, events.PartitionOf(q.TenantID), q.After, q.Limit)
		return err
	})
	return c, err
}

// chargeLines returns the lines of a period with their charges.
func (r *Reads) chargeLines(ctx context.Context, tx pgx.Tx, p *Period, basis string) ([]domain.ChargeLine, error) {
	histories, err := prices.ReadHistories(ctx, tx, []uuid.UUID{p.TenantID})
	if err != nil {
		return nil, err
	}
	h := histories[p.TenantID]
	if basis == BasisBillable {
		return r.billableLines(ctx, tx, p, h)
	}
	of := prices.Period{TenantID: p.TenantID, PeriodKey: p.PeriodKey}
	sums, err := r.Sums.Of(ctx, tx, []prices.Period{of}, histories)
	if err != nil {
		return nil, err
	}
	return prices.Charge(ctx, tx, h, sums[of], prices.Latest, p.PeriodKey)
}

const readFrozenSums = `SELECT feature, subscription_id, grant_number, amount::text, event_count FROM period_charges
WHERE tenant_id = $1 AND period_key = $2 AND snapshot = $3 ORDER BY feature, subscription_id, grant_number`

// $4 selects the adjustments of rebuilds, which no verdict names; the others are found by their verdicts.
const readApproved = `SELECT feature, subscription_id, position, amount::text, event_count FROM adjustments
WHERE tenant_id = $1 AND period_key = $2 AND snapshot = $3 AND state = 'APPROVED' AND (kind = 'REBUILD') = $4 ORDER BY position`

// billableLines returns the frozen lines of a snapshot with its approved adjustments. The terms of lines are those known at the cut; those
// of a grant that was made later, and is charged by an adjustment, those known when it was made.
func (r *Reads) billableLines(ctx context.Context, tx pgx.Tx, p *Period, h domain.History) ([]domain.ChargeLine, error) {
	at := []any{p.TenantID, p.PeriodKey, *p.Snapshot}
	sums, err := readSums(ctx, tx, readFrozenSums, at...)
	if err != nil {
		return nil, err
	}
	adjusted, err := readSums(ctx, tx, readApproved, append(at, false)...)
	if err != nil {
		return nil, err
	}
	var verdicts []int64
	for i := range adjusted {
		verdicts = append(verdicts, adjusted[i].Grant)
	}
	approved, err := r.Sums.OfVerdicts(ctx, tx, p.TenantID, verdicts, h)
	if err != nil {
		return nil, err
	}
	sums = add(sums, approved)
	rebuilt, err := readSums(ctx, tx, readApproved, append(at, true)...)
	if err != nil {
		return nil, err
	}
	lines := h.Lines(sums, p.CutPosition.Number, p.PeriodKey)
	for i := range rebuilt {
		rebuilt[i].Grant = lastGrant(lines, &rebuilt[i], h)
	}
	return prices.Charge(ctx, tx, h, add(sums, rebuilt), p.CutPosition.Number, p.PeriodKey)
}

// lastGrant returns the grant of the last line of a figure, in the order of the axis.
func lastGrant(lines []domain.ChargeLine, of *domain.GrantSum, h domain.History) int64 {
	for i := len(lines) - 1; i >= 0; i-- {
		if l := &lines[i]; l.Feature == of.Feature && l.SubscriptionID == of.SubscriptionID {
			return l.Grant
		}
	}
	return h.LastGrant(of.SubscriptionID)
}

// readSums reads sums; those of adjustments have a position in the place of the grant.
func readSums(ctx context.Context, tx pgx.Tx, sql string, args ...any) (list []domain.GrantSum, err error) {
	return list, query.Run(ctx, tx, query.New(sql, args, query.Each(func(rows pgx.Rows) error {
		s := domain.GrantSum{Amount: new(big.Int)}
		var amount string
		if err := rows.Scan(&s.Feature, &s.SubscriptionID, &s.Grant, &amount, &s.EventCount); err != nil {
			return err
		}
		if _, ok := s.Amount.SetString(amount, 10); !ok {
			return fmt.Errorf("the amount %q of %s is no integer", amount, s.Feature)
		}
		list = append(list, s)
		return nil
	})))
}

// add adds sums to a list, which has each grant of a feature and a subscription once.
func add(list, more []domain.GrantSum) []domain.GrantSum {
	list = slices.Clone(list)
	for _, s := range more {
		at := slices.IndexFunc(list, func(o domain.GrantSum) bool {
			return o.Feature == s.Feature && o.SubscriptionID == s.SubscriptionID && o.Grant == s.Grant
		})
		if at < 0 {
			list = append(list, s)
			continue
		}
		list[at].Amount = new(big.Int).Add(list[at].Amount, s.Amount)
		list[at].EventCount += s.EventCount
	}
	return list
}

// sum adds all lines up.
func (c *Charges) sum(lines []domain.ChargeLine) {
	sums := totals{}
	for i := range lines {
		l := &lines[i]
		if l.Rated == nil {
			c.Unpriced++
			continue
		}
		sums.add(l.Rated.Currency, l.MicroUnits, 1)
	}
	c.Totals = sums.list()
}

// totals are the sums of charges by currency.
type totals map[string]*total

type total struct {
	microUnits big.Int
	lines      int
}

func (t totals) add(currency string, microUnits *big.Int, lines int) {
	if t[currency] == nil {
		t[currency] = new(total)
	}
	sum := t[currency]
	sum.microUnits.Add(&sum.microUnits, microUnits)
	sum.lines += lines
}

func (t totals) list() []ChargeTotal {
	list := []ChargeTotal{}
	for _, currency := range slices.Sorted(maps.Keys(t)) {
		list = append(list, ChargeTotal{currency, prices.MoneyOf(&t[currency].microUnits), t[currency].lines})
	}
	return list
}

// pageOfCharges returns at most limit lines behind a cursor. A cursor whose line is gone, since a rebuild counts otherwise, is refused.
func pageOfCharges(lines []domain.ChargeLine, partition int16, after string, limit int) (page []Charge, next string, err error) {
	page = []Charge{}
	if after != "" {
		at := slices.IndexFunc(lines, func(l domain.ChargeLine) bool { return chargeCursor(&l) == after })
		if at < 0 {
			return nil, "", query.ErrCursorInvalid
		}
		lines = lines[at+1:]
	}
	for i := range lines[:min(len(lines), limit)] {
		page = append(page, chargeOf(&lines[i], partition))
	}
	if len(lines) > limit && limit > 0 {
		next = chargeCursor(&lines[limit-1])
	}
	return page, next, nil
}

func chargeCursor(l *domain.ChargeLine) string {
	return strings.Join([]string{l.Feature, l.SubscriptionID.String(), strconv.FormatInt(l.Grant, 10)}, "/")
}

func chargeOf(l *domain.ChargeLine, partition int16) Charge {
	c := Charge{Feature: l.Feature, SubscriptionID: l.SubscriptionID, Status: l.Status, From: l.From, To: l.To,
		Amount: json.Number(l.Amount.String()), EventCount: l.EventCount, Price: l.Rated}
	if l.Grant != events.GrantBefore {
		c.Grant = &events.Position{Partition: partition, Number: l.Grant}
	}
	if l.Rated != nil {
		money := prices.MoneyOf(l.MicroUnits)
		c.Currency, c.MicroUnits, c.Decimal = &l.Rated.Currency, &money.MicroUnits, &money.Decimal
	}
	return c
}
