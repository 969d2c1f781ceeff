package rebuild

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// DiffSum is a sum over keys. Live, Rebuilt and Delta are set for projections of amounts only.
type DiffSum struct {
	TenantID  *uuid.UUID   `json:"tenantId,omitempty"`
	PeriodKey *string      `json:"periodKey,omitempty"`
	Live      *json.Number `json:"live,omitempty"`
	Rebuilt   *json.Number `json:"rebuilt,omitempty"`
	Delta     *json.Number `json:"delta,omitempty"`
	Keys      int64        `json:"keys"`
	Differing int64        `json:"differing"`
}

// DiffTotals sum up a whole difference. ByPeriod and ByTenant list the differing ones, the
// greatest first, at most 100 of each.
type DiffTotals struct {
	DiffSum
	// DifferingClosed is set for projections whose periods can be closed.
	DifferingClosed *int64 `json:"differingClosed,omitempty"`

	ByPeriod []DiffSum `json:"byPeriod,omitempty"`
	ByTenant []DiffSum `json:"byTenant,omitempty"`
	// Charges are what the keys of the difference cost, by currency; ChargesByTenant those of each tenant, the greatest change first,
	// at most 100. Keys without a price are in neither: Unpriced counts them.
	Charges         []ChargeSum `json:"charges,omitempty"`
	ChargesByTenant []ChargeSum `json:"chargesByTenant,omitempty"`
	Unpriced        *int64      `json:"unpriced,omitempty" doc:"Keys of the difference without a price; left out unless it is priced."`

	closed string // names the closed periods of differing keys
}

const (
	maxSums     = 100  // more would not be read
	maxReadSums = 1000 // periods and tenants together
)

func (c *Comparison) totals(ctx context.Context, tx pgx.Tx, q DiffQuery, t *DiffTotals) error {
	q.After = ""
	args, err := c.arguments(q)
	if err != nil {
		return err
	}
	return query.Run(ctx, tx, query.New(c.projection.Diff.Totals, append(args, maxReadSums), query.Each(func(rows pgx.Rows) error {
		var s DiffSum
		var live, rebuilt, delta *string
		err := rows.Scan(&s.TenantID, &s.PeriodKey, &live, &rebuilt, &delta, &s.Keys, &s.Differing)
		s.Live, s.Rebuilt, s.Delta = exactText(live), exactText(rebuilt), exactText(delta)
		t.add(s)
		return err
	})))
}

// countClosed counts the differing keys of closed periods, of projections whose periods are closed.
func (c *Comparison) countClosed(ctx context.Context, tx pgx.Tx, q DiffQuery, t *DiffTotals) error {
	if c.projection.Diff.Closed == "" {
		return nil
	}
	q.After = ""
	args, err := c.arguments(q)
	if err != nil {
		return err
	}
	t.DifferingClosed = new(int64)
	return query.Run(ctx, tx, query.New(c.projection.Diff.Closed, args, query.One(t.DifferingClosed, &t.closed)))
}

func exactText(text *string) *json.Number {
	if text == nil {
		return nil
	}
	n := json.Number(*text)
	return &n
}

func (t *DiffTotals) add(s DiffSum) {
	switch {
	case s.TenantID == nil && s.PeriodKey == nil:
		t.DiffSum = s
	case s.TenantID == nil && len(t.ByPeriod) < maxSums:
		t.ByPeriod = append(t.ByPeriod, s)
	case s.TenantID != nil && len(t.ByTenant) < maxSums:
		t.ByTenant = append(t.ByTenant, s)
	}
}

// Conservation accounts for every verdict of the scope, at the positions of the
// difference: verdicts = counted + parked + withheld. The other figures cover all events
// recorded up to now: recorded = validated + rejected + undecided. They are null for one
// period, since only a verdict names the period.
type Conservation struct {
	Holds    bool   `json:"holds"`
	Verdicts int64  `json:"verdicts"` // in the log
	Counted  int64  `json:"counted"`  // in the rebuilt rows
	Parked   int64  `json:"parked"`   // could not be folded; a later retry is a verdict of its own
	Withheld int64  `json:"withheld"` // could not be published, only that
	Recorded *int64 `json:"recorded"`
	// Validated counts events with an accepting verdict; Rejected those with only rejecting
	// ones; Undecided those without a verdict.
	Validated *int64 `json:"validated"`
	Rejected  *int64 `json:"rejected"`
	Undecided *int64 `json:"undecided"`
}

// readConservation takes each term from its own rows: verdicts from the log, counted ones
// from the rebuilt table. 2 is the topic usage.validated, 3 usage.dead-letter, 11 an event
// that a fold failed for. $1 and $2 are the positions, $3 and $4 bound the tenants,
// $5 is the period.
var readConservation = events.SQL(`
WITH scope AS MATERIALIZED (SELECT * FROM unnest($1::smallint[], $2::bigint[]) AS s (partition, up_to)),
failed AS MATERIALIZED (
  SELECT f.partition, (f.payload ->> 'sourcePosition')::bigint AS position
  FROM scope s JOIN event_log_rows f ON f.partition = s.partition AND f.topic = {usage.dead-letter}
  AND f.subject = {usage.event.aggregation_failed}
  JOIN log_origins o ON o.id = f.origin AND o.actor_type = 'service' AND o.actor_id = 'meterplex-usage-aggregator'
  WHERE f.tenant_id BETWEEN $3::uuid AND $4::uuid),
verdicts AS (
  SELECT w.position IS NOT NULL AS withheld, f.position IS NOT NULL AS parked
  FROM scope s JOIN event_log_rows l ON l.partition = s.partition AND l.topic = {usage.validated} AND l.position <= s.up_to
  LEFT JOIN withheld_records w ON w.partition = l.partition AND w.position = l.position AND NOT w.late
  LEFT JOIN failed f ON f.partition = l.partition AND f.position = l.position
  WHERE l.tenant_id BETWEEN $3::uuid AND $4::uuid
    AND ($5::text = '' OR coalesce(l.payload ->> 'periodKey', l.payload -> 'validated' ->> 'periodKey') = $5))
SELECT count(*), count(*) FILTER (WHERE v.parked), count(*) FILTER (WHERE v.withheld AND NOT v.parked),
       (SELECT coalesce(sum(a.applied_count), 0)::bigint FROM usage_aggregates a
        WHERE a.generation = $6::int AND a.tenant_id BETWEEN $3::uuid AND $4::uuid AND ($5::text = '' OR a.period_key = $5))
FROM verdicts v`)

// Recorded usage with its corrections and retractions, acceptances and rejections; a rejection that a retry turned into an acceptance
// counts as accepted.
var readAccepted = events.SQL(`
WITH scope AS MATERIALIZED (SELECT unnest($1::smallint[]) AS partition),
refused AS (
  SELECT DISTINCT l.partition, l.tenant_id, l.payload ->> 'rawPosition' AS raw
  FROM scope s JOIN event_log_rows l ON l.partition = s.partition AND l.topic = {usage.dead-letter} AND l.subject = {usage.event.rejected}
  WHERE l.tenant_id BETWEEN $2::uuid AND $3::uuid)
SELECT counted.recorded, counted.validated, (
  SELECT count(*) FROM refused r WHERE NOT EXISTS (
    SELECT FROM event_log_rows v WHERE v.partition = r.partition AND v.tenant_id = r.tenant_id AND v.dedupe_key = 'v/' || r.raw))
FROM (
  SELECT count(*) FILTER (WHERE l.subject <> {usage.event.validated}) AS recorded,
  count(*) FILTER (WHERE l.subject = {usage.event.validated}) AS validated
  FROM scope s JOIN event_log_rows l ON l.partition = s.partition AND l.subject IN ({usage.event.recorded}, {usage.event.admitted},
  {usage.event.corrected}, {usage.event.retracted}, {usage.event.validated})
  WHERE l.tenant_id BETWEEN $2::uuid AND $3::uuid) counted`)

// conservation returns nil for figures of one feature, which only a fold can determine,
// and for projections without counts.
func (c *Comparison) conservation(ctx context.Context, tx pgx.Tx, q DiffQuery) (*Conservation, error) {
	if !c.projection.Diff.Sums || q.Feature != "" {
		return nil, nil
	}
	q.After = ""
	args, err := c.arguments(q)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, asItCosts); err != nil {
		return nil, err
	}
	low, high, period := args[7], args[8], args[9].([]string)[1]
	partitions, upTo := split(c.Positions)
	k := new(Conservation)
	err = query.Run(ctx, tx, query.New(readConservation, []any{partitions, upTo, low, high, period, c.Rebuild.Generation},
		query.One(&k.Verdicts, &k.Parked, &k.Withheld, &k.Counted)))
	k.Holds = k.Verdicts == k.Counted+k.Parked+k.Withheld
	if err != nil || period != "" {
		return k, err
	}
	var recorded, validated, rejected int64
	err = query.Run(ctx, tx, query.New(readAccepted, []any{partitions, low, high}, query.One(&recorded, &validated, &rejected)))
	undecided := recorded - validated - rejected
	k.Recorded, k.Validated, k.Rejected, k.Undecided = &recorded, &validated, &rejected, &undecided
	return k, err
}

// asItCosts lets the planner sort and hash again: the next statements read the log.
const asItCosts = `SET LOCAL enable_sort TO DEFAULT; SET LOCAL enable_hashagg TO DEFAULT;
 SET LOCAL max_parallel_workers_per_gather TO DEFAULT`

func split(positions []events.Position) (partitions []int16, numbers []int64) {
	for _, p := range positions {
		partitions, numbers = append(partitions, p.Partition), append(numbers, p.Number)
	}
	return partitions, numbers
}
