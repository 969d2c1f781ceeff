// Package periods reads closed periods: their frozen figures beside the live ones, and their adjustments.
package periods

import (
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// Lines is a query of the lines of a tenant's closed periods: $1 is the tenant, $2 its partition, $3 a period ("": all that are closed), $4 a snapshot
// (0: the last). In one snapshot of the database, with the live generation's aggregator at a position x, for amounts and for counts:
//
//	row = frozen + adjustments that are not void, whose verdict is folded up to x and not parked (REBUILD: always) + unreconciled
//
// A verdict is parked from its failure until a retry of it is folded, which closes its dead letter as RESOLVED in the same transaction.
var Lines = events.SQL(`
WITH closed AS MATERIALIZED (
  SELECT s.period_key, s.snapshot, live_generation('` + projections.ProjectionUsage + `', $1, s.period_key) AS generation,
         s.snapshot = (SELECT max(c.snapshot) FROM period_changes c WHERE c.tenant_id = $1 AND c.period_key = s.period_key)
         AND NOT EXISTS (SELECT FROM period_changes c WHERE c.tenant_id = $1 AND c.period_key = s.period_key AND c.snapshot = s.snapshot AND c.change = 'reopened') AS present
  FROM period_snapshots s
  WHERE s.tenant_id = $1 AND ($3::text = '' OR s.period_key = $3)
    AND s.snapshot = CASE WHEN $4::int > 0 THEN $4 ELSE (SELECT max(o.snapshot) FROM period_snapshots o WHERE o.tenant_id = $1 AND o.period_key = s.period_key) END),
folded AS MATERIALIZED (
  SELECT generation, position FROM consumer_checkpoints WHERE consumer = '` + events.GroupAggregator + `' AND partition = $2),
parked AS MATERIALIZED (
  SELECT CASE WHEN f.body::text ~* '\\u(0000|d[89a-f])' THEN NULL ELSE f.body ->> 'sourcePosition' END AS source
  FROM event_log_rows f
  WHERE f.tenant_id = $1 AND f.subject IN ({usage.event.publish_failed}, {usage.event.aggregation_failed}) AND f.partition IS NOT DISTINCT FROM $2
    AND (f.subject = {usage.event.publish_failed} OR EXISTS (SELECT FROM log_origins o WHERE o.id = f.origin AND o.actor_id = '` + events.GroupAggregator + `'))
    AND NOT EXISTS (SELECT FROM event_log_rows e WHERE e.partition = $2 AND e.tenant_id = $1
      AND e.dedupe_key = 'r/' || coalesce(f.body ->> 'deadLetterId', f.event_id::text) || '/closed' AND e.body ->> 'status' = '` + events.StatusResolved + `')),
sums AS (
  SELECT a.period_key, a.feature, a.subscription_id,
    sum(a.amount) FILTER (WHERE a.state = 'PENDING') AS pending, sum(a.amount) FILTER (WHERE a.state = 'APPROVED') AS approved,
    sum(a.amount) FILTER (WHERE a.state = 'WAIVED') AS waived,
    sum(a.amount) FILTER (WHERE a.counts) AS counted, sum(a.event_count) FILTER (WHERE a.counts) AS counted_events
  FROM (
    SELECT a.*, a.state <> 'VOID' AND (a.kind = 'REBUILD' OR a.position <= f.position AND a.position::text NOT IN (SELECT p.source FROM parked p WHERE p.source IS NOT NULL)) AS counts
    FROM closed c JOIN adjustments a ON a.tenant_id = $1 AND a.period_key = c.period_key AND a.snapshot = c.snapshot
    LEFT JOIN folded f ON f.generation = c.generation) a
  GROUP BY a.period_key, a.feature, a.subscription_id),
live AS (
  SELECT u.period_key, u.feature, u.subscription_id, u.amount, u.event_count
  FROM closed c JOIN usage_aggregates u ON u.generation = c.generation AND u.tenant_id = $1 AND u.period_key = c.period_key WHERE c.present),
frozen AS (
  SELECT l.period_key, l.feature, l.subscription_id, l.amount, l.event_count
  FROM closed c JOIN period_lines l ON l.tenant_id = $1 AND l.period_key = c.period_key AND l.snapshot = c.snapshot),
lines AS (
  SELECT period_key, feature, subscription_id, coalesce(f.amount, 0) AS frozen, coalesce(f.event_count, 0) AS frozen_count,
    coalesce(s.pending, 0) AS pending, coalesce(s.approved, 0) AS approved, coalesce(s.waived, 0) AS waived,
    coalesce(s.counted, 0) AS counted, coalesce(s.counted_events, 0) AS counted_events,
    coalesce(l.amount, 0) AS net, coalesce(l.event_count, 0) AS net_count
  FROM frozen f FULL JOIN sums s USING (period_key, feature, subscription_id) FULL JOIN live l USING (period_key, feature, subscription_id))
SELECT l.period_key, c.snapshot, c.present, l.feature, l.subscription_id, l.frozen, l.frozen_count, l.pending, l.approved, l.waived,
  l.net, l.net_count, l.net - l.frozen - l.counted AS unreconciled, l.net_count - l.frozen_count - l.counted_events AS unreconciled_count
FROM lines l JOIN closed c USING (period_key)`)
