package periods

import (
	"context"
	"encoding/json"
	"math/big"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/prices"
	"github.com/meterplex/meterplex/projections/query"
)

// Evaluation asks what the usage of a period costs by another price.
type Evaluation struct {
	PeriodKey string
	TenantID  uuid.UUID     // Nil: all tenants
	Feature   string        // whose lines are charged by the price; "": those of the price's key
	Inline    *domain.Price // nil: Version
	Version   domain.PriceVersion
	Position  *events.Position // as known then; of one tenant
	RebuildID uuid.UUID        // Nil: by the live figures, or the billable ones of a closed period
	Limit     int
	After     uuid.UUID // the last tenant of the page before
}

// Evaluated is what a tenant's lines cost now, and by the other price.
type Evaluated struct {
	TenantID uuid.UUID `json:"tenantId"`
	Basis    string    `json:"basis" enum:"billable,net,position,rebuild" doc:"The amounts that are evaluated."`
	EvaluatedLines
}

// EvaluatedLines is what lines cost now, and by the other price.
type EvaluatedLines struct {
	Amount    json.Number   `json:"amount" doc:"Of the lines that the price is applied to."`
	Lines     int           `json:"lines" doc:"Lines that the price is applied to."`
	Charged   []ChargeTotal `json:"charged" nullable:"false"`
	Evaluated ChargeTotal   `json:"evaluated" doc:"The charge of the lines by the price."`
	Delta     *prices.Money `json:"delta" doc:"evaluated less charged; null if they have different currencies."`
}

// EvaluatedTotals are the sums of all tenants.
type EvaluatedTotals struct {
	Tenants int `json:"tenants" doc:"Tenants with such lines."`
	EvaluatedLines
}

// Evaluations are a page of tenants, by their ids.
type Evaluations struct {
	Data   []Evaluated
	Totals *EvaluatedTotals // of the first page, up to maxEvaluated tenants
	Next   uuid.UUID        // Nil on the last page
	By     domain.Price
}

// maxEvaluated bounds the tenants of which totals are summed up: as many as the longest page has. Each costs several reads, so that 10,000
// took longer than a request may.
const maxEvaluated = 1000

// Tenants with usage in a period: of all, without test tenants. $2 is a generation, 0: that which is live.
const readTenantsOfPeriod = `
SELECT DISTINCT u.tenant_id FROM usage_aggregates u
WHERE u.period_key = $1 AND ($2::int > 0 OR u.generation IN (SELECT p.generation FROM projection_pointers p WHERE p.live
AND p.projection = '` + projections.ProjectionUsage + `'))
  AND u.generation = CASE WHEN $2::int > 0 THEN $2 ELSE live_generation('` + projections.ProjectionUsage +
	`', u.tenant_id, u.period_key) END
  AND (u.tenant_id = $3 OR $3::uuid = '00000000-0000-0000-0000-000000000000' AND u.tenant_id NOT IN
  (SELECT t.id FROM tenants t WHERE t.mode = 'test')) AND u.tenant_id > $4 AND ($5 = '' OR u.feature = $5) ORDER BY u.tenant_id LIMIT $6`

const readRebuild = `SELECT generation, state FROM projection_rebuilds WHERE id = $1 AND projection = '` + projections.ProjectionUsage + `'`

// Evaluate returns the cost of tenants' usage by another price, a page of one snapshot of the database. It stores no row. Refusals:
// price_not_found, rebuild_not_found, rebuild_not_ready.
func (r *Reads) Evaluate(ctx context.Context, e Evaluation) (found Evaluations, err error) {
	err = r.Within(ctx, query.Viewer{Operator: true}, func(ctx context.Context, tx pgx.Tx) error {
		by, err := e.price(ctx, tx)
		if err != nil {
			return err
		}
		generation, err := e.generation(ctx, tx)
		if err != nil {
			return err
		}
		tenants, err := e.tenants(ctx, tx, generation)
		if err != nil {
			return err
		}
		found.By = *by
		page := tenants[:min(len(tenants), e.Limit)]
		if len(tenants) > e.Limit {
			found.Next = page[e.Limit-1]
		}
		if found.Data, err = r.evaluateAll(ctx, tx, &e, page, generation, by); err != nil || e.After != uuid.Nil ||
			len(tenants) > maxEvaluated {
			return err
		}
		rest, err := r.evaluateAll(ctx, tx, &e, tenants[len(page):], generation, by)
		found.Totals = totalsOf(append(slices.Clone(found.Data), rest...), by.Currency)
		return err
	})
	return found, err
}

// evaluateAll evaluates the period of tenants that have lines for the price.
func (r *Reads) evaluateAll(ctx context.Context, tx pgx.Tx, e *Evaluation, tenants []uuid.UUID, generation int,
	by *domain.Price) ([]Evaluated, error) {
	all := []Evaluated{}
	for _, tenant := range tenants {
		of, err := r.evaluate(ctx, tx, e, tenant, generation, by)
		if err != nil {
			return nil, err
		}
		if of.Lines > 0 {
			all = append(all, of)
		}
	}
	return all, nil
}

func totalsOf(all []Evaluated, currency string) *EvaluatedTotals {
	amount, cost, charged, lines := new(big.Int), new(big.Int), totals{}, 0
	for i := range all {
		of, _ := new(big.Int).SetString(all[i].Amount.String(), 10)
		amount.Add(amount, of)
		cost.Add(cost, all[i].Evaluated.Amount())
		for _, t := range all[i].Charged {
			charged.add(t.Currency, t.Amount(), t.Lines)
		}
		lines += all[i].Lines
	}
	return &EvaluatedTotals{len(all), evaluatedLines(amount, cost, lines, currency, charged.list())}
}

func evaluatedLines(amount, cost *big.Int, n int, currency string, charged []ChargeTotal) EvaluatedLines {
	return EvaluatedLines{Amount: json.Number(amount.String()), Lines: n, Charged: charged,
		Evaluated: ChargeTotal{currency, prices.MoneyOf(cost), n},
		Delta:     deltaOf(cost, currency, charged)}
}

// price returns the price to evaluate.
func (e *Evaluation) price(ctx context.Context, tx pgx.Tx) (*domain.Price, error) {
	if e.Inline != nil {
		return e.Inline, nil
	}
	versions, err := prices.Versions(ctx, tx, []domain.PriceVersion{e.Version})
	if err != nil {
		return nil, err
	}
	p := versions[e.Version]
	if p == nil {
		return nil, &domain.Error{Code: "price_not_found", Message: "No such version of a price", Pointer: "/version"}
	}
	return p, nil
}

func (e *Evaluation) generation(ctx context.Context, tx pgx.Tx) (generation int, err error) {
	if e.RebuildID == uuid.Nil {
		return 0, nil
	}
	var state string
	err = query.Run(ctx, tx, query.New(readRebuild, []any{e.RebuildID}, query.One(&generation, &state)))
	switch {
	case err != nil:
	case generation == 0:
		err = &domain.Error{Code: "rebuild_not_found", Message: "Not found"}
	case state != domain.RebuildReady && state != domain.RebuildPromoted:
		err = &domain.Error{Code: "rebuild_not_ready", Message: "The rebuild is " + state}
	}
	return generation, err
}

func (e *Evaluation) tenants(ctx context.Context, tx pgx.Tx, generation int) (list []uuid.UUID, err error) {
	limit := e.Limit
	if e.After == uuid.Nil {
		limit = maxEvaluated
	}
	args := []any{e.PeriodKey, generation, e.TenantID, e.After, e.Feature, limit + 1}
	return list, query.Run(ctx, tx, query.New(readTenantsOfPeriod, args, query.Values(&list)))
}

// selects reports whether the price is applied to a line.
func (e *Evaluation) selects(l *domain.ChargeLine) bool {
	if e.Feature != "" {
		return l.Feature == e.Feature
	}
	return l.Price == e.Version.Key
}

// evaluate evaluates the period of a tenant.
func (r *Reads) evaluate(ctx context.Context, tx pgx.Tx, e *Evaluation, tenant uuid.UUID, generation int, by *domain.Price) (of Evaluated,
	err error) {
	p, _, err := standing(ctx, tx, Query{TenantID: tenant, PeriodKey: e.PeriodKey})
	if err != nil {
		return of, err
	}
	of = Evaluated{TenantID: tenant, Basis: BasisNet}
	if p.State == domain.StateClosed {
		of.Basis = BasisBillable
	}
	charged, err := r.chargeLines(ctx, tx, &p, of.Basis)
	if err != nil {
		return of, err
	}
	lines := charged
	if generation > 0 || e.Position != nil {
		if lines, of.Basis, err = r.otherLines(ctx, tx, e, tenant, generation); err != nil {
			return of, err
		}
	}
	cost, amount, n, err := domain.Evaluate(lines, by, e.selects)
	if err != nil {
		return of, err
	}
	var c Charges
	c.sum(slices.DeleteFunc(slices.Clone(charged), func(l domain.ChargeLine) bool { return !e.selects(&l) }))
	of.EvaluatedLines = evaluatedLines(amount, cost, n, by.Currency, c.Totals)
	return of, nil
}

// otherLines returns the lines of a rebuild, or those as of a position.
func (r *Reads) otherLines(ctx context.Context, tx pgx.Tx, e *Evaluation, tenant uuid.UUID, generation int) (lines []domain.ChargeLine,
	basis string, err error) {
	histories, err := prices.ReadHistories(ctx, tx, []uuid.UUID{tenant})
	if err != nil {
		return nil, "", err
	}
	h, of := histories[tenant], prices.Period{TenantID: tenant, PeriodKey: e.PeriodKey, Generation: generation}
	var sums []domain.GrantSum
	known := int64(prices.Latest)
	if basis = "rebuild"; e.Position != nil {
		basis, known = "position", e.Position.Number
		sums, err = r.Sums.AsOf(ctx, tx, of, known, h)
	} else {
		var found map[prices.Period][]domain.GrantSum
		found, err = r.Sums.Of(ctx, tx, []prices.Period{of}, histories)
		sums = found[of]
	}
	if err == nil {
		lines, err = prices.Charge(ctx, tx, h, sums, known, e.PeriodKey)
	}
	return lines, basis, err
}

// deltaOf returns the difference to what is charged, nil if that has another currency.
func deltaOf(cost *big.Int, currency string, charged []ChargeTotal) *prices.Money {
	delta := new(big.Int).Set(cost)
	for i := range charged {
		if charged[i].Currency != currency {
			return nil
		}
		delta.Sub(delta, charged[i].Amount())
	}
	money := prices.MoneyOf(delta)
	return &money
}
