package usage

// usageSides are the live and the rebuilt rows of usage_aggregates, side by side.
// Each branch is read in key order from the table's primary key (inOrder ensures
// it), merged with the others and grouped as a stream: memory is one row, and the
// scan stops when the page is full. With 500,000 keys on each side a page of 100
// takes 2 ms if all rows are requested, 0.5 s if each 1,000th differs, and all pages
// 2.1 s; a FULL JOIN always takes 1.1 s.
// $1 is the rebuilt generation, $2 the generation of most live rows; $3 says that it
// has all of them, else $4 to $7 are the pointers. $8 and $9 bound the tenants, $10
// selects {feature, period key}, $11 is the end of the previous page.
const usageSides = `
WITH base AS MATERIALIZED (
  SELECT * FROM unnest($4::uuid[], $5::text[], $6::int[], $7::int[]) AS b (tenant_id, period_key, flip, generation)),
sides AS (
SELECT a.tenant_id, a.feature, a.period_key, a.subscription_id,
       max(a.amount) FILTER (WHERE NOT a.rebuilt) AS live, max(a.amount) FILTER (WHERE a.rebuilt) AS rebuilt,
       max(a.event_count) FILTER (WHERE NOT a.rebuilt) AS live_count, max(a.event_count) FILTER (WHERE a.rebuilt) AS rebuilt_count,
       max(a.applied_count) FILTER (WHERE NOT a.rebuilt) AS live_applied, max(a.applied_count) FILTER (WHERE a.rebuilt) AS rebuilt_applied,
       max(a.last_event_at) FILTER (WHERE NOT a.rebuilt) AS live_last, max(a.last_event_at) FILTER (WHERE a.rebuilt) AS rebuilt_last
FROM (
  (SELECT false AS rebuilt, l.tenant_id, l.feature, l.period_key, l.subscription_id, l.amount, l.event_count, l.applied_count,
  l.last_event_at
  FROM usage_aggregates l
  WHERE l.generation = $2::int AND l.tenant_id BETWEEN $8::uuid AND $9::uuid
    AND (($10::text[])[1] = '' OR l.feature = ($10::text[])[1]) AND (($10::text[])[2] = '' OR l.period_key = ($10::text[])[2])
    AND (l.tenant_id, l.feature, l.period_key, l.subscription_id) > (($11::text[])[1]::uuid, ($11::text[])[2], ($11::text[])[3],
    ($11::text[])[4]::uuid)
    AND ($3::boolean OR l.generation = (
      SELECT b.generation FROM base b
      WHERE b.tenant_id IN (l.tenant_id, '00000000-0000-0000-0000-000000000000') AND b.period_key IN (l.period_key, '')
      ORDER BY b.flip DESC LIMIT 1))
  ORDER BY l.tenant_id, l.feature, l.period_key, l.subscription_id)
  UNION ALL
  (SELECT false, l.tenant_id, l.feature, l.period_key, l.subscription_id, l.amount, l.event_count, l.applied_count, l.last_event_at
  FROM usage_aggregates l
  WHERE NOT $3::boolean AND l.generation = ANY ($7::int[]) AND l.generation <> $2::int AND l.tenant_id BETWEEN $8::uuid AND $9::uuid
    AND (($10::text[])[1] = '' OR l.feature = ($10::text[])[1]) AND (($10::text[])[2] = '' OR l.period_key = ($10::text[])[2])
    AND (l.tenant_id, l.feature, l.period_key, l.subscription_id) > (($11::text[])[1]::uuid, ($11::text[])[2], ($11::text[])[3],
    ($11::text[])[4]::uuid)
    AND l.generation = (
      SELECT b.generation FROM base b
      WHERE b.tenant_id IN (l.tenant_id, '00000000-0000-0000-0000-000000000000') AND b.period_key IN (l.period_key, '')
      ORDER BY b.flip DESC LIMIT 1)
  ORDER BY l.tenant_id, l.feature, l.period_key, l.subscription_id)
  UNION ALL
  (SELECT true, r.tenant_id, r.feature, r.period_key, r.subscription_id, r.amount, r.event_count, r.applied_count, r.last_event_at
  FROM usage_aggregates r
  WHERE r.generation = $1::int AND r.tenant_id BETWEEN $8::uuid AND $9::uuid
    AND (($10::text[])[1] = '' OR r.feature = ($10::text[])[1]) AND (($10::text[])[2] = '' OR r.period_key = ($10::text[])[2])
    AND (r.tenant_id, r.feature, r.period_key, r.subscription_id) > (($11::text[])[1]::uuid, ($11::text[])[2], ($11::text[])[3],
    ($11::text[])[4]::uuid)
  ORDER BY r.tenant_id, r.feature, r.period_key, r.subscription_id)
) a
GROUP BY a.tenant_id, a.feature, a.period_key, a.subscription_id)
`

// The last column is the snapshot of a closed period: a promotion leaves its figures, and proposes the difference as an adjustment.
const readUsageDiff = usageSides + `
SELECT NULL::uuid, s.tenant_id, s.feature, s.period_key, s.subscription_id, s.live::text, s.rebuilt::text,
       (coalesce(s.rebuilt, 0) - coalesce(s.live, 0))::text, s.rebuilt_count, s.live_count,
       (SELECT CASE WHEN c.change = 'closed' THEN c.snapshot END FROM period_changes c
        WHERE c.tenant_id = s.tenant_id AND c.period_key = s.period_key ORDER BY c.position DESC LIMIT 1)
FROM sides s
WHERE $12::boolean OR s.live IS DISTINCT FROM s.rebuilt OR s.live_count IS DISTINCT FROM s.rebuilt_count
  OR s.live_applied IS DISTINCT FROM s.rebuilt_applied OR s.live_last IS DISTINCT FROM s.rebuilt_last
ORDER BY s.tenant_id, s.feature, s.period_key, s.subscription_id
LIMIT $13::int`

// The keys of the greatest differences of their figures, the greatest first. $12 is their number.
const readLargestUsageDiff = usageSides + `
SELECT NULL::uuid, s.tenant_id, s.feature, s.period_key, s.subscription_id, s.live::text, s.rebuilt::text,
       (coalesce(s.rebuilt, 0) - coalesce(s.live, 0))::text, s.rebuilt_count, s.live_count,
       (SELECT CASE WHEN c.change = 'closed' THEN c.snapshot END FROM period_changes c
        WHERE c.tenant_id = s.tenant_id AND c.period_key = s.period_key ORDER BY c.position DESC LIMIT 1)
FROM (
  SELECT * FROM sides d WHERE coalesce(d.rebuilt, 0) <> coalesce(d.live, 0)
  ORDER BY abs(coalesce(d.rebuilt, 0) - coalesce(d.live, 0)) DESC, d.tenant_id, d.feature, d.period_key, d.subscription_id
  LIMIT $12::int) s
ORDER BY abs(coalesce(s.rebuilt, 0) - coalesce(s.live, 0)) DESC, s.tenant_id, s.feature, s.period_key, s.subscription_id`

// Totals of all, of each period and of each tenant that differ: the greatest first.
// The deltas have no total: it would hide errors that cancel out.
const readUsageTotals = usageSides + `
SELECT t.tenant_id, t.period_key, t.live::text, t.rebuilt::text, (t.rebuilt - t.live)::text, t.keys, t.differing
FROM (
  SELECT grouping(s.tenant_id) AS every_tenant, grouping(s.period_key) AS every_period, s.tenant_id, s.period_key,
         coalesce(sum(s.live), 0) AS live, coalesce(sum(s.rebuilt), 0) AS rebuilt, count(*) AS keys,
         count(*) FILTER (WHERE s.live IS DISTINCT FROM s.rebuilt OR s.live_count IS DISTINCT FROM s.rebuilt_count
           OR s.live_applied IS DISTINCT FROM s.rebuilt_applied OR s.live_last IS DISTINCT FROM s.rebuilt_last) AS differing
  FROM sides s
  GROUP BY GROUPING SETS ((), (s.tenant_id), (s.period_key))) t
WHERE t.differing > 0 OR t.every_tenant = 1 AND t.every_period = 1
ORDER BY t.every_tenant + t.every_period DESC, t.every_tenant DESC, abs(t.rebuilt - t.live) DESC, t.tenant_id, t.period_key
LIMIT $12::int`

// The number of keys that differ and whose period is closed: a period is as its last change left it. The text names these periods and their
// snapshots. The keys are counted by tenant and period first, so that each period is looked up once. Without closed periods no key is read.
const countClosedUsageDiff = usageSides + `
SELECT coalesce(sum(g.differing), 0)::bigint, coalesce(sum(hashtextextended(concat_ws('/', g.tenant_id, g.period_key, c.snapshot), 0)),
0)::text
FROM (
  SELECT s.tenant_id, s.period_key, count(*) AS differing
  FROM sides s
  WHERE s.live IS DISTINCT FROM s.rebuilt OR s.live_count IS DISTINCT FROM s.rebuilt_count
    OR s.live_applied IS DISTINCT FROM s.rebuilt_applied OR s.live_last IS DISTINCT FROM s.rebuilt_last
  GROUP BY s.tenant_id, s.period_key) g
CROSS JOIN LATERAL (SELECT c.change, c.snapshot FROM period_changes c
  WHERE c.tenant_id = g.tenant_id AND c.period_key = g.period_key ORDER BY c.position DESC LIMIT 1) c
WHERE EXISTS (SELECT FROM period_changes c WHERE c.change = 'closed' AND c.tenant_id BETWEEN $8::uuid AND $9::uuid) AND c.change = 'closed'`
