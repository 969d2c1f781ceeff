package usage

import (
	"cmp"
	"context"
	"errors"
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

// Grants reads the sums of usage by grant.
type Grants struct{ Folds projections.Versions[Fold] }

var _ prices.Sums = Grants{}

// grantKey is the key of a sum by grant.
type grantKey struct {
	feature      string
	subscription uuid.UUID
	grant        int64
}

// grantSums are the sums of a tenant's period.
type grantSums map[grantKey]*usageSum

func (s grantSums) add(key grantKey, amount *big.Int, count int64) {
	sum := s[key]
	if sum == nil {
		sum = new(usageSum)
		s[key] = sum
	}
	sum.amount.Add(&sum.amount, amount)
	sum.count += count
}

// list returns the sums in the order of their keys.
func (s grantSums) list() (list []domain.GrantSum) {
	for key, sum := range s {
		list = append(list, domain.GrantSum{Feature: key.feature, SubscriptionID: key.subscription, Grant: key.grant, Amount: &sum.amount,
			EventCount: sum.count})
	}
	slices.SortFunc(list, func(a, b domain.GrantSum) int {
		return cmp.Or(cmp.Compare(a.Feature, b.Feature), slices.Compare(a.SubscriptionID[:], b.SubscriptionID[:]),
			cmp.Compare(a.Grant, b.Grant))
	})
	return list
}

// The rows of figures, and of their sums by grant, which follow the figure.
const readGrantSums = `
WITH given AS MATERIALIZED (
  SELECT k.n, k.tenant_id, k.period_key, CASE WHEN k.generation > 0 THEN k.generation ELSE live_generation('` +
	projections.ProjectionUsage + `', k.tenant_id, k.period_key) END AS generation
  FROM unnest($1::uuid[], $2::text[], $3::int[]) WITH ORDINALITY AS k (tenant_id, period_key, generation, n))
SELECT k.n, k.generation, u.feature, u.subscription_id, 0, u.amount::text, u.event_count, u.applied_count
FROM given k JOIN usage_aggregates u ON u.generation = k.generation AND u.tenant_id = k.tenant_id AND u.period_key = k.period_key
UNION ALL
SELECT k.n, k.generation, u.feature, u.subscription_id, u.grant_number, u.amount::text, u.event_count, u.applied_count
FROM given k JOIN usage_by_grant u ON u.generation = k.generation AND u.tenant_id = k.tenant_id AND u.period_key = k.period_key`

// grantRow is a row of a figure, whose grant is 0, or of a sum by grant.
type grantRow struct {
	period, generation int
	key                grantKey
	amount             big.Int
	count, applied     int64
}

func scanGrantRow(rows pgx.Rows) (r grantRow, err error) {
	var amount string
	err = rows.Scan(&r.period, &r.generation, &r.key.feature, &r.key.subscription, &r.key.grant, &amount, &r.count, &r.applied)
	if _, ok := r.amount.SetString(amount, 10); !ok {
		err = errors.Join(err, errNoInteger)
	}
	return r, err
}

// Of implements prices.Sums. The rows by grant are the whole figure if they count as many verdicts. If not, and if the history leaves a
// choice, the verdicts of the figure are read from the log.
func (g Grants) Of(ctx context.Context, tx pgx.Tx, periods []prices.Period,
	histories map[uuid.UUID]domain.History) (map[prices.Period][]domain.GrantSum, error) {
	rows, err := readGrantRows(ctx, tx, periods)
	if err != nil {
		return nil, err
	}
	found := make(map[prices.Period][]domain.GrantSum, len(periods))
	for i, p := range periods {
		sums, unknown := knownSums(rows[i], histories[p.TenantID], p.PeriodKey)
		if len(unknown) > 0 {
			if err := g.fromLog(ctx, tx, sums, p, rows[i][0].generation, unknown, histories[p.TenantID]); err != nil {
				return nil, err
			}
		}
		found[p] = sums.list()
	}
	return found, nil
}

// readGrantRows returns the rows of each period.
func readGrantRows(ctx context.Context, tx pgx.Tx, periods []prices.Period) (map[int][]grantRow, error) {
	var tenants []uuid.UUID
	var keys []string
	var generations []int
	for _, p := range periods {
		tenants, keys, generations = append(tenants, p.TenantID), append(keys, p.PeriodKey), append(generations, p.Generation)
	}
	found := map[int][]grantRow{}
	return found, query.Run(ctx, tx, query.New(readGrantSums, []any{tenants, keys, generations}, query.Each(func(rows pgx.Rows) error {
		r, err := scanGrantRow(rows)
		found[r.period-1] = append(found[r.period-1], r)
		return err
	})))
}

// knownSums returns the sums that rows tell, and the features whose verdicts must be read.
func knownSums(rows []grantRow, h domain.History, periodKey string) (sums grantSums, unknown []string) {
	type line struct {
		feature      string
		subscription uuid.UUID
	}
	left := map[line]int64{} // verdicts that no row by grant counts
	for i := range rows {
		r := &rows[i]
		if at := (line{r.key.feature, r.key.subscription}); r.key.grant == 0 {
			left[at] += r.applied
		} else {
			left[at] -= r.applied
		}
	}
	for i := range rows {
		r := &rows[i]
		if r.key.grant != 0 || left[line{r.key.feature, r.key.subscription}] == 0 {
			continue
		}
		if _, only := h.OnlyGrant(r.key.subscription, periodKey); !only && !slices.Contains(unknown, r.key.feature) {
			unknown = append(unknown, r.key.feature)
		}
	}
	sums = grantSums{}
	for i := range rows {
		r := &rows[i]
		if slices.Contains(unknown, r.key.feature) {
			continue
		}
		if left[line{r.key.feature, r.key.subscription}] == 0 {
			if r.key.grant != 0 {
				sums.add(r.key, &r.amount, r.count)
			}
		} else if number, _ := h.OnlyGrant(r.key.subscription, periodKey); r.key.grant == 0 {
			sums.add(grantKey{r.key.feature, r.key.subscription, number}, &r.amount, r.count)
		}
	}
	return sums, unknown
}

const readGenerationState = `SELECT g.fold_version, c.position FROM projection_generations g
JOIN consumer_checkpoints c ON c.consumer = '` + events.GroupAggregator + `' AND c.generation = g.generation AND c.partition = $2
WHERE g.projection = '` + projections.ProjectionUsage + `' AND g.generation = $1`

// fromLog adds the sums of features from their verdicts in the log, up to the checkpoint of the generation.
func (g Grants) fromLog(ctx context.Context, tx pgx.Tx, sums grantSums, p prices.Period, generation int, features []string,
	h domain.History) error {
	var version string
	var upTo int64
	state := query.New(readGenerationState, []any{generation, events.PartitionOf(p.TenantID)}, query.One(&version, &upTo))
	if err := query.Run(ctx, tx, state); err != nil {
		return err
	}
	fold, err := g.Folds.Of(version)
	if err != nil {
		return err
	}
	t := verdictsBy(p.TenantID, fold)
	for _, feature := range features {
		walk := &figureWalk{verdicts: t, feature: feature, period: p.PeriodKey, upTo: upTo}
		if err := sums.walk(ctx, tx, walk, h); err != nil {
			return err
		}
	}
	return nil
}

// verdictsBy reads a tenant's verdicts by one fold.
func verdictsBy(tenant uuid.UUID, fold Fold) *tenantVerdicts {
	return &tenantVerdicts{tenant: tenant, partition: events.PartitionOf(tenant), folds: []liveFold{{"", fold}},
		uncounted: map[int64]uncountedUsage{}}
}

// walk adds the verdicts of a figure.
func (s grantSums) walk(ctx context.Context, tx pgx.Tx, walk *figureWalk, h domain.History) error {
	return walk.each(ctx, tx, func(c *countedUsage, counted bool) bool {
		if counted && c.key.PeriodKey == walk.period {
			s.addVerdict(c, h)
		}
		return true
	})
}

func (s grantSums) addVerdict(c *countedUsage, h domain.History) {
	s.add(grantKey{c.key.Feature, c.key.SubscriptionID, c.grant(h)}, big.NewInt(c.delta.Amount), c.delta.Count)
}

// grant returns the grant of a verdict. A verdict without one has the grant as known at its recorded event, or at the target of its
// correction.
func (c *countedUsage) grant(h domain.History) int64 {
	if c.delta.Grant != 0 {
		return c.delta.Grant
	}
	known := c.verdict.RawPosition
	if c.verdict.CorrectedUsage != nil {
		known = c.verdict.TargetPosition
	}
	return h.GrantOf(known, c.delta.At, c.key.SubscriptionID)
}

// AsOf implements prices.Sums.
func (g Grants) AsOf(ctx context.Context, tx pgx.Tx, p prices.Period, position int64, h domain.History) ([]domain.GrantSum, error) {
	reads := Reads{Folds: g.Folds}
	t, err := reads.verdictsOf(ctx, tx, p.TenantID)
	if err != nil {
		return nil, err
	}
	figures, err := t.figures(ctx, tx, &AggregateQuery{PeriodKey: p.PeriodKey}, new(aggregateCursor))
	sums := grantSums{}
	for i := range figures {
		if err == nil {
			err = sums.walk(ctx, tx, t.wholeFigure(figures[i].feature, p.PeriodKey, &position), h)
		}
	}
	return sums.list(), err
}

// OfVerdicts implements prices.Sums.
func (g Grants) OfVerdicts(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, positions []int64, h domain.History) ([]domain.GrantSum,
	error) {
	reads := Reads{Folds: g.Folds}
	t, err := reads.verdictsOf(ctx, tx, tenant)
	if err != nil {
		return nil, err
	}
	sums := grantSums{}
	for piece := range slices.Chunk(positions, mostAtOnce) {
		list, err := t.read(ctx, tx, readVerdictsAt, t.partition, t.tenant, piece)
		if err != nil {
			return nil, err
		}
		for i := range list {
			c := &list[i]
			if v := &c.verdict; !c.folds { // an adjustment is billable whether its verdict is folded or not
				c.key = Key{tenant, v.Feature, v.PeriodKey, v.ValidatedSubscriptionID}
				c.delta = Delta{v.Amount, v.Count, v.Timestamp, v.Grant}
			}
			sums.addVerdict(c, h)
		}
	}
	return sums.list(), nil
}
