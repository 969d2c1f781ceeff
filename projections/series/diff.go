package series

// seriesSides are the live and the rebuilt hours side by side; for the parameters see usageSides. The period of a
// row is the start of its hour, followed by its group if it is grouped.
const seriesSides = `
WITH base AS MATERIALIZED (
  SELECT * FROM unnest($4::uuid[], $5::text[], $6::int[], $7::int[]) AS b (tenant_id, period_key, flip, generation)),
rows AS (
  SELECT s.generation, s.tenant_id, s.feature, s.amount, s.event_count,
         (to_char(s.hour AT TIME ZONE 'UTC',
         'YYYY-MM-DD"T"HH24:MI:SS"Z"') || CASE WHEN s.group_values = '{}' THEN '' ELSE ' ' || s.group_values END) COLLATE "C" AS period_key
  FROM usage_series s
  WHERE s.generation = ANY ($1::int || $7::int[]) AND s.tenant_id BETWEEN $8::uuid AND $9::uuid
    AND (($10::text[])[1] = '' OR s.feature = ($10::text[])[1])),
sides AS (
  SELECT r.tenant_id, r.feature, r.period_key,
         max(r.amount) FILTER (WHERE r.generation <> $1) AS live, max(r.amount) FILTER (WHERE r.generation = $1) AS rebuilt,
         max(r.event_count) FILTER (WHERE r.generation <> $1) AS live_count,
         max(r.event_count) FILTER (WHERE r.generation = $1) AS rebuilt_count
  FROM rows r
  WHERE (($10::text[])[2] = '' OR r.period_key = ($10::text[])[2])
    AND (r.tenant_id, r.feature, r.period_key) > (($11::text[])[1]::uuid, ($11::text[])[2], ($11::text[])[3])
    AND (r.generation = $1 OR $3::boolean AND r.generation = $2::int OR NOT $3::boolean AND r.generation = (
      SELECT b.generation FROM base b WHERE b.tenant_id IN (r.tenant_id, '00000000-0000-0000-0000-000000000000')
      ORDER BY b.flip DESC LIMIT 1))
  GROUP BY r.tenant_id, r.feature, r.period_key)
`

const readSeriesDiff = seriesSides + `
SELECT NULL::uuid, s.tenant_id, s.feature, s.period_key, NULL::uuid, s.live::text, s.rebuilt::text,
       (coalesce(s.rebuilt, 0) - coalesce(s.live, 0))::text, s.rebuilt_count, s.live_count
FROM sides s
WHERE $12::boolean OR s.live IS DISTINCT FROM s.rebuilt OR s.live_count IS DISTINCT FROM s.rebuilt_count
ORDER BY s.tenant_id, s.feature, s.period_key
LIMIT $13::int`

// Totals of all tenants, and of each that differs: the greatest first.
const readSeriesTotals = seriesSides + `
SELECT t.tenant_id, NULL::text, t.live::text, t.rebuilt::text, (t.rebuilt - t.live)::text, t.keys, t.differing
FROM (
  SELECT grouping(s.tenant_id) AS every_tenant, s.tenant_id, coalesce(sum(s.live), 0) AS live, coalesce(sum(s.rebuilt), 0) AS rebuilt,
  count(*) AS keys,
         count(*) FILTER (WHERE s.live IS DISTINCT FROM s.rebuilt OR s.live_count IS DISTINCT FROM s.rebuilt_count) AS differing
  FROM sides s
  GROUP BY GROUPING SETS ((), (s.tenant_id))) t
WHERE t.differing > 0 OR t.every_tenant = 1
ORDER BY t.every_tenant DESC, abs(t.rebuilt - t.live) DESC, t.tenant_id
LIMIT $12::int`
