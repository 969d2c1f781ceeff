// Package periods reads closed periods: their frozen figures beside the live ones, and their adjustments.
package periods

import (
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// Lines is a query of the lines of a tenant's closed periods: $1 is the tenant, $2 its partition, $3 a period ("": all that are closed), $4
// a snapshot (0: the last). In one snapshot of the database, with the live generation's aggregator at a position x, for amounts and for
// counts:
//
//	row = frozen + adjustments that are not void, whose verdict is folded up to x and not parked (REBUILD: always) + unreconciled
//
// A verdict is parked from its failure until a retry of it is folded, which closes its dead letter as RESOLVED in the same transaction.
var Lines = lines("")

// lines returns the query of a page of the lines. The page is selected before adjustments are summed up: there can be many of them for a
// line. Their lines are found by one look into the index adjustments_sums each.
func lines(page string) string {
	return events.SQL(`
WITH RECURSIVE closed AS MATERIALIZED (
  SELECT s.period_key, s.snapshot, live_generation('` + projections.ProjectionUsage + `', $1, s.period_key) AS generation,
         s.snapshot = (SELECT max(c.snapshot) FROM period_changes c WHERE c.tenant_id = $1 AND c.period_key = s.period_key)
         AND NOT EXISTS (SELECT FROM period_changes c WHERE c.tenant_id = $1 AND c.period_key = s.period_key
         AND c.snapshot = s.snapshot AND c.change = 'reopened') AS present
  FROM period_snapshots s
  WHERE s.tenant_id = $1 AND ($3::text = '' OR s.period_key = $3)
    AND s.snapshot = CASE WHEN $4::int > 0 THEN $4 ELSE (SELECT max(o.snapshot) FROM period_snapshots o WHERE o.tenant_id = $1
    AND o.period_key = s.period_key) END),
folded AS MATERIALIZED (
  SELECT generation, position FROM consumer_checkpoints WHERE consumer = '` + events.GroupAggregator + `' AND partition = $2),
parked AS MATERIALIZED (
  SELECT ` + projections.FailureSource("f") + ` AS source
  FROM event_log_rows f
  WHERE f.tenant_id = $1 AND f.partition IS NOT DISTINCT FROM $2 AND ` + projections.UncountedVerdict("f") + `
    AND NOT EXISTS (SELECT FROM event_log_rows e WHERE e.partition = $2 AND e.tenant_id = $1
      AND e.dedupe_key = 'r/' || coalesce(f.body ->> 'deadLetterId', f.event_id::text) || '/closed' AND e.body ->> 'status' = '` +
		events.StatusResolved + `')),
adjusted (period_key, snapshot, feature, subscription_id) AS (
  SELECT c.period_key, c.snapshot, k.feature, k.subscription_id FROM closed c CROSS JOIN LATERAL (
    SELECT a.feature, a.subscription_id FROM adjustments a WHERE a.tenant_id = $1 AND a.period_key = c.period_key
    AND a.snapshot = c.snapshot
    ORDER BY a.feature, a.subscription_id LIMIT 1) k
  UNION ALL
  SELECT p.period_key, p.snapshot, k.feature, k.subscription_id FROM adjusted p CROSS JOIN LATERAL (
    SELECT a.feature, a.subscription_id FROM adjustments a WHERE a.tenant_id = $1 AND a.period_key = p.period_key
    AND a.snapshot = p.snapshot
      AND (a.feature, a.subscription_id) > (p.feature, p.subscription_id)
    ORDER BY a.feature, a.subscription_id LIMIT 1) k),
keys AS (
  SELECT period_key, feature, subscription_id, sum(frozen) AS frozen, sum(frozen_count)::bigint AS frozen_count, sum(net) AS net,
  sum(net_count)::bigint AS net_count
  FROM (
    SELECT l.period_key, l.feature, l.subscription_id, l.amount AS frozen, l.event_count AS frozen_count, 0 AS net, 0 AS net_count
    FROM closed c JOIN period_lines l ON l.tenant_id = $1 AND l.period_key = c.period_key AND l.snapshot = c.snapshot
    UNION ALL SELECT u.period_key, u.feature, u.subscription_id, 0, 0, u.amount, u.event_count
    FROM closed c JOIN usage_aggregates u ON u.generation = c.generation AND u.tenant_id = $1 AND u.period_key = c.period_key
    WHERE c.present
    UNION ALL SELECT period_key, feature, subscription_id, 0, 0, 0, 0 FROM adjusted) k
  GROUP BY period_key, feature, subscription_id),
page AS MATERIALIZED (
  SELECT k.*, c.snapshot, c.present, f.position FROM keys k JOIN closed c USING (period_key)
  LEFT JOIN folded f ON f.generation = c.generation ` + page + `),
lines AS (
  SELECT k.*, s.pending, s.approved, s.waived, s.counted, s.counted_events
  FROM page k CROSS JOIN LATERAL (
    SELECT coalesce(sum(a.amount) FILTER (WHERE a.state = 'PENDING'), 0) AS pending,
    coalesce(sum(a.amount) FILTER (WHERE a.state = 'APPROVED'), 0) AS approved,
      coalesce(sum(a.amount) FILTER (WHERE a.state = 'WAIVED'), 0) AS waived,
      coalesce(sum(a.amount) FILTER (WHERE a.counts), 0) AS counted, coalesce(sum(a.event_count) FILTER (WHERE a.counts),
      0) AS counted_events
    FROM (
      SELECT a.state, a.amount, a.event_count, a.state <> 'VOID' AND (a.kind = 'REBUILD' OR a.position <= k.position
        AND (NOT EXISTS (SELECT FROM parked) OR a.position::text NOT IN (SELECT p.source FROM parked p
        WHERE p.source IS NOT NULL))) AS counts
      FROM adjustments a
      WHERE a.tenant_id = $1 AND a.period_key = k.period_key AND a.snapshot = k.snapshot AND a.feature = k.feature
      AND a.subscription_id = k.subscription_id) a) s)
SELECT period_key, snapshot, present, feature, subscription_id, frozen, frozen_count, pending, approved, waived,
  net, net_count, net - frozen - counted AS unreconciled, net_count - frozen_count - counted_events AS unreconciled_count
FROM lines`)
}
