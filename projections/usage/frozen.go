package usage

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/prices"
	"github.com/meterplex/meterplex/projections/query"
)

// PeriodFigures computes the figures of a period that a close freezes: the sum of the verdicts whose cause is not behind the cut, by the
// fold that is live. It does so in two ways, which must agree.
type PeriodFigures struct{ Folds projections.Versions[Fold] }

// closePiece is the number of verdicts that one statement of a close reads.
const closePiece = 32_768

// OfLog folds the figures from the verdicts in the log. The features are those of the catalogue, which keeps all.
func (f PeriodFigures) OfLog(ctx context.Context, tx pgx.Tx, c domain.Closing, h *domain.PeriodHistory) (domain.Figures, error) {
	histories, err := prices.ReadHistories(ctx, tx, []uuid.UUID{c.TenantID})
	if err != nil {
		return domain.Figures{}, err
	}
	figures, err := f.ofLog(ctx, tx, c, h, histories[c.TenantID])
	if err == nil {
		figures.Charges, err = prices.Charge(ctx, tx, histories[c.TenantID], figures.Grants, h.Cut(c.PeriodKey, c.Snapshot), c.PeriodKey)
	}
	return figures, err
}

// ofLog is OfLog without the charges.
func (f PeriodFigures) ofLog(ctx context.Context, tx pgx.Tx, c domain.Closing, h *domain.PeriodHistory,
	subscriptions domain.History) (domain.Figures, error) {
	var features []string
	late := &domain.LateVerdicts{}
	figures, t, err := f.live(ctx, tx, c,
		query.New(`SELECT lookup_key FROM features ORDER BY lookup_key`, nil, query.Values(&features)),
		query.New(`SELECT position FROM log_heads WHERE partition = $1`, []any{events.PartitionOf(c.TenantID)}, query.One(&late.UpTo)))
	if err != nil {
		return figures, err
	}
	cut := &periodCut{verdicts: t, history: h, closing: c, cut: h.Cut(c.PeriodKey, c.Snapshot), lines: map[Key]*usageSum{}, late: late,
		subscriptions: subscriptions}
	for some := range slices.Chunk(features, mostAtOnce) {
		if err := cut.features(ctx, tx, some); err != nil {
			return figures, err
		}
	}
	grants := grantSums{}
	for key, sum := range cut.lines {
		for number, of := range sum.byGrant {
			if of.amount.Sign() != 0 || of.count != 0 {
				grants.add(grantKey{key.Feature, key.SubscriptionID, number}, &of.amount, of.count)
			}
		}
		if sum.amount.Sign() == 0 && sum.count == 0 {
			continue // the same as no line: readers of the answer compute the hash without it
		}
		figures.Lines = append(figures.Lines, domain.FigureLine{Feature: key.Feature, SubscriptionID: key.SubscriptionID,
			Amount:     &sum.amount,
			EventCount: sum.count, LastEventAt: sum.last.UTC()})
	}
	sortLines(figures.Lines)
	figures.Grants = grants.list()
	figures.Late = cut.late
	figures.LogicHash, err = f.LogicHash(figures.Logic)
	return figures, err
}

func sortLines(lines []domain.FigureLine) {
	slices.SortFunc(lines, func(a, b domain.FigureLine) int {
		return cmp.Or(cmp.Compare(a.Feature, b.Feature), slices.Compare(a.SubscriptionID[:], b.SubscriptionID[:]))
	})
}

const readLiveOfPeriod = `SELECT g.generation, g.fold_version FROM projection_generations g
WHERE g.projection = '` + projections.ProjectionUsage + `' AND g.generation = live_generation('` + projections.ProjectionUsage +
	`', $1, $2)`

// live returns the generation that readers of the period see, and its fold. More reads share its round trip.
func (f PeriodFigures) live(ctx context.Context, tx pgx.Tx, c domain.Closing, more ...query.Statement) (figures domain.Figures,
	t *tenantVerdicts, err error) {
	live := query.New(readLiveOfPeriod, []any{c.TenantID, c.PeriodKey}, query.One(&figures.Generation, &figures.Logic))
	if err = query.RunAll(ctx, tx, append(more, live)...); err != nil {
		return figures, nil, err
	}
	fold, err := f.Folds.Of(figures.Logic)
	t = &tenantVerdicts{tenant: c.TenantID, partition: events.PartitionOf(c.TenantID), folds: []liveFold{{"", fold}},
		uncounted: map[int64]uncountedUsage{}}
	return figures, t, err
}

// periodCut adds the verdicts of a period up: those whose cause is not behind the cut.
type periodCut struct {
	verdicts *tenantVerdicts
	history  *domain.PeriodHistory
	closing  domain.Closing
	cut      int64
	retried  map[uuid.UUID]domain.RetriedUsage // by the ids of the retries; nil: not read
	failed   map[int64]bool                    // verdicts that were not folded; nil: not read
	lines    map[Key]*usageSum
	late     *domain.LateVerdicts

	subscriptions domain.History
}

// The first verdicts of each feature $3 in the period $4, at most $5 of each.
const readFirstVerdicts = `
SELECT ` + verdictColumns + `
FROM unnest($3::text[]) AS given (feature)
CROSS JOIN LATERAL verdict_positions($1, $2, given.feature, $4, 0, 9223372036854775807, $5) AS v (position)
CROSS JOIN LATERAL (SELECT e.* FROM event_log e WHERE e.partition = $1 AND e.position = v.position LIMIT 1) l
ORDER BY l.position`

// features adds the verdicts of features: those of figures with few verdicts are read by one statement.
func (p *periodCut) features(ctx context.Context, tx pgx.Tx, features []string) error {
	t := p.verdicts
	first, err := t.read(ctx, tx, readFirstVerdicts, t.partition, t.tenant, features, p.closing.PeriodKey, firstPiece)
	if err != nil {
		return err
	}
	if err := p.add(ctx, tx, first); err != nil {
		return err
	}
	read, last := map[string]int{}, map[string]int64{}
	for i := range first {
		feature := first[i].verdict.Feature
		read[feature]++
		last[feature] = first[i].position
	}
	for _, feature := range features {
		if read[feature] < firstPiece {
			continue
		}
		if err := p.rest(ctx, tx, feature, last[feature]); err != nil {
			return err
		}
	}
	return nil
}

// add adds the verdicts of a piece. Those up to the cut have causes before it.
func (p *periodCut) add(ctx context.Context, tx pgx.Tx, piece []countedUsage) error {
	var behind []int64
	for i := range piece {
		if piece[i].position > p.cut {
			behind = append(behind, piece[i].verdict.RawPosition)
		}
	}
	causes, err := p.causesOf(ctx, tx, behind)
	if err != nil {
		return err
	}
	for i := range piece {
		c := &piece[i]
		switch late := c.verdict.Late; {
		case !c.folds:
		case late != nil && late.Snapshot == p.closing.Snapshot:
			p.late.List = append(p.late.List, domain.LateVerdict{Position: c.position, Feature: c.key.Feature,
				SubscriptionID: c.key.SubscriptionID, Amount: c.delta.Amount, Count: c.delta.Count})
			fallthrough
		default:
			if c.position <= p.cut || p.cause(c, causes) <= p.cut {
				c.delta.Grant = c.grant(p.subscriptions)
				addTo(p.lines, p.verdicts.partition, c.key, c.delta)
			}
		}
	}
	return nil
}

// cause returns the position that decides whether a verdict is late. The fold of a verdict that is retried has the cause of the verdict,
// unless the period was frozen before.
func (p *periodCut) cause(c *countedUsage, retries map[int64]domain.RetriedUsage) int64 {
	raw := c.verdict.RawPosition
	cause := raw
	if retry, ok := retries[raw]; ok {
		cause = p.history.Cause(p.closing.PeriodKey, raw, &retry)
	}
	if c.again {
		return p.history.Cause(p.closing.PeriodKey, cause, &domain.RetriedUsage{Position: c.position})
	}
	return cause
}

// The verdict on each recorded event, and the event that caused it.
const readVerdictCauses = `
SELECT g.raw, v.causation_id FROM unnest($3::bigint[]) AS g (raw)
CROSS JOIN LATERAL (SELECT l.causation_id FROM event_log_rows l WHERE l.partition = $1 AND l.tenant_id = $2 AND l.dedupe_key = 'v/' || g.raw
LIMIT 1) v
WHERE v.causation_id IS NOT NULL`

// As readRetries, with + 0 for the same reason.
var readAllRetries = events.SQL(`
SELECT l.event_id, l.position, coalesce((l.payload ->> 'rejected')::boolean, false) FROM event_log_rows l
WHERE l.partition = $1 AND l.tenant_id = $2 AND l.dedupe_key > 'r/' AND l.dedupe_key < 'r0' AND l.subject + 0 = {usage.event.retried}`)

// causesOf returns the retries that caused the verdicts on recorded events; those without are not retried.
func (p *periodCut) causesOf(ctx context.Context, tx pgx.Tx, raws []int64) (map[int64]domain.RetriedUsage, error) {
	if len(raws) == 0 {
		return nil, nil
	}
	t := p.verdicts
	if p.retried == nil {
		p.retried = map[uuid.UUID]domain.RetriedUsage{}
		err := query.Run(ctx, tx, query.New(readAllRetries, []any{t.partition, t.tenant}, query.Each(func(rows pgx.Rows) error {
			var id uuid.UUID
			var retry domain.RetriedUsage
			err := rows.Scan(&id, &retry.Position, &retry.Rejected)
			p.retried[id] = retry
			return err
		})))
		if err != nil {
			return nil, err
		}
	}
	if len(p.retried) == 0 {
		return nil, nil
	}
	found := map[int64]domain.RetriedUsage{}
	return found, query.Run(ctx, tx, query.New(readVerdictCauses, []any{t.partition, t.tenant, raws}, query.Each(func(rows pgx.Rows) error {
		var raw int64
		var cause uuid.UUID
		err := rows.Scan(&raw, &cause)
		if retry, ok := p.retried[cause]; ok {
			found[raw] = retry
		}
		return err
	})))
}

const (
	readPeriodRows = `SELECT feature, subscription_id, amount::text, event_count, last_event_at FROM usage_aggregates
WHERE generation = live_generation('` + projections.ProjectionUsage +
		`', $1, $2) AND tenant_id = $1 AND period_key = $2 ORDER BY feature, subscription_id`

	readLatePositions = `SELECT position FROM adjustments WHERE tenant_id = $1 AND period_key = $2 AND snapshot = $3 AND kind <> 'REBUILD'
		ORDER BY position`

	readAggregatorPosition = `SELECT position FROM consumer_checkpoints WHERE consumer = '` + events.GroupAggregator +
		`' AND partition = $1 AND generation = live_generation('` + projections.ProjectionUsage + `', $2, $3)`
)

// OfRows reads the live rows, and subtracts the live fold's counts of late verdicts. Those that are known from OfLog are not read again.
// The caller has locked the aggregator's checkpoints.
func (f PeriodFigures) OfRows(ctx context.Context, tx pgx.Tx, c domain.Closing, known *domain.LateVerdicts) (domain.Figures, error) {
	var lines []domain.FigureLine
	var folded int64
	var late []int64
	figures, t, err := f.live(ctx, tx, c,
		query.New(readPeriodRows, []any{c.TenantID, c.PeriodKey}, query.Into(&lines, scanLine)),
		query.New(readAggregatorPosition, []any{events.PartitionOf(c.TenantID), c.TenantID, c.PeriodKey}, query.One(&folded)),
		query.New(readLatePositions, []any{c.TenantID, c.PeriodKey, c.Snapshot}, query.Values(&late)))
	if err != nil {
		return figures, err
	}
	figures.Lines = lines
	late = slices.DeleteFunc(late, func(position int64) bool { return position > folded })
	return figures, subtractLate(ctx, tx, t, &figures, late, folded, known)
}

func scanLine(rows pgx.Rows) (l domain.FigureLine, err error) {
	var amount string
	var last time.Time
	if err := rows.Scan(&l.Feature, &l.SubscriptionID, &amount, &l.EventCount, &last); err != nil {
		return l, err
	}
	l.LastEventAt, l.Amount = last.UTC(), new(big.Int)
	if _, ok := l.Amount.SetString(amount, 10); !ok {
		return l, fmt.Errorf("the amount %q of %s is no integer", amount, l.Feature)
	}
	return l, nil
}

// readLateRetries finds the retries of the folds of verdicts ($3) up to a position, by the dead letters of their failures. The first
// condition is that of the index event_log_failures; + 0 as in readRetries.
var readLateRetries = events.SQL(`
SELECT again.position FROM unnest($3::bigint[]) AS given (number)
CROSS JOIN LATERAL (SELECT coalesce(f.body ->> 'deadLetterId', f.event_id::text) AS letter FROM event_log_rows f
 WHERE f.subject IN ({usage.event.publish_failed}, {usage.event.aggregation_failed}) AND f.tenant_id = $2
  AND ` + projections.FailureSource("f") + ` = given.number::text OFFSET 0) d
CROSS JOIN LATERAL (SELECT l.position FROM event_log_rows l WHERE l.partition = $1 AND l.tenant_id = $2
  AND l.dedupe_key > 'r/' || d.letter || '/' AND l.dedupe_key < 'r/' || d.letter || '0' AND l.subject + 0 = {usage.event.reaggregated}
  AND l.position <= $4 LIMIT 10000) again
ORDER BY again.position`)

// retriesOf returns the positions of the retries of folds of verdicts that failed, up to a position.
func (t *tenantVerdicts) retriesOf(ctx context.Context, tx pgx.Tx, failed []int64, upTo int64) (again []int64, err error) {
	if len(failed) == 0 {
		return nil, nil
	}
	err = query.Run(ctx, tx, query.New(readLateRetries, []any{t.partition, t.tenant, failed, upTo}, query.Values(&again)))
	slices.Sort(again)
	return slices.Compact(again), err
}

// subtractLate subtracts the late verdicts of a close, and the retries of their folds, as far as they count. Those that are known are not
// read. A verdict without a row leaves a figure below 0, which differs from that of the log.
func subtractLate(ctx context.Context, tx pgx.Tx, t *tenantVerdicts, figures *domain.Figures, late []int64, folded int64,
	known *domain.LateVerdicts) error {
	if len(late) == 0 {
		return nil
	}
	failures, err := t.failures(ctx, tx)
	if err != nil {
		return err
	}
	if known == nil {
		known = &domain.LateVerdicts{}
	}
	sums := map[Key]*usageSum{}
	for i := range known.List {
		if v := &known.List[i]; v.Position <= folded && !failures[v.Position] {
			addTo(sums, t.partition, Key{TenantID: t.tenant, Feature: v.Feature, SubscriptionID: v.SubscriptionID},
				Delta{Amount: v.Amount, Count: v.Count})
		}
	}
	again, err := t.retriesOf(ctx, tx, slices.DeleteFunc(slices.Clone(late), func(position int64) bool {
		return !failures[position]
	}), folded)
	if err != nil {
		return err
	}
	unknown := slices.DeleteFunc(append(late, again...), func(position int64) bool { return position <= known.UpTo || failures[position] })
	for piece := range slices.Chunk(unknown, mostAtOnce) {
		list, err := t.read(ctx, tx, readVerdictsAt, t.partition, t.tenant, piece)
		if err != nil {
			return err
		}
		for i := range list {
			if key := list[i].key; list[i].folds {
				key.PeriodKey = ""
				addTo(sums, t.partition, key, list[i].delta)
			}
		}
	}
	subtract(figures, t.tenant, sums)
	return nil
}

// addTo adds a delta to the sum of a key.
func addTo(sums map[Key]*usageSum, partition int16, key Key, d Delta) {
	sum := sums[key]
	if sum == nil {
		sum = new(usageSum)
		sums[key] = sum
	}
	sum.add(partition, d)
}

// subtract subtracts sums of lines from figures.
func subtract(figures *domain.Figures, tenant uuid.UUID, sums map[Key]*usageSum) {
	for i := range figures.Lines {
		l := &figures.Lines[i]
		key := Key{TenantID: tenant, Feature: l.Feature, SubscriptionID: l.SubscriptionID}
		if sum := sums[key]; sum != nil {
			l.Amount.Sub(l.Amount, &sum.amount)
			l.EventCount -= sum.count
			delete(sums, key)
		}
	}
	for key, sum := range sums {
		figures.Lines = append(figures.Lines, domain.FigureLine{Feature: key.Feature, SubscriptionID: key.SubscriptionID,
			Amount: new(big.Int).Neg(&sum.amount), EventCount: -sum.count})
	}
}
