package entitlements

// entitlementSides are rows side by side as objects; parameters as of usageSides. A
// grant has no period: its period is "".
const entitlementSides = `
WITH base AS MATERIALIZED (
  SELECT * FROM unnest($4::uuid[], $5::text[], $6::int[], $7::int[]) AS b (tenant_id, period_key, flip, generation)),
rows AS (
  SELECT g.generation, g.tenant_id, g.feature, '' COLLATE "C" AS period_key, NULL::numeric AS used,
         json_build_object('subscriptionId', g.subscription_id, 'type', g.type, 'unit', g.unit, 'limit', g."limit",
           'limitBehavior', g.limit_behavior, 'resetPeriod', g.reset_period, 'onIngest', g.on_ingest)::text AS says
  FROM entitlement_grants g
  WHERE g.generation = ANY ($1::int || $7::int[]) AND g.tenant_id BETWEEN $8::uuid AND $9::uuid
  UNION ALL
  SELECT u.generation, u.tenant_id, u.feature, u.period_key, u.used,
    CASE WHEN u.held = 0 THEN json_build_object('used', u.used) ELSE json_build_object('used', u.used, 'held', u.held) END::text
  FROM entitlement_usage u
  WHERE u.generation = ANY ($1::int || $7::int[]) AND u.tenant_id BETWEEN $8::uuid AND $9::uuid),
sides AS (
  SELECT r.tenant_id, r.feature, r.period_key,
         max(r.says) FILTER (WHERE r.generation <> $1) AS live, max(r.says) FILTER (WHERE r.generation = $1) AS rebuilt,
         coalesce(max(r.used) FILTER (WHERE r.generation = $1), 0) - coalesce(max(r.used) FILTER (WHERE r.generation <> $1), 0) AS delta,
         count(r.used) > 0 AS of_usage
  FROM rows r
  WHERE (($10::text[])[1] = '' OR r.feature = ($10::text[])[1]) AND (($10::text[])[2] = '' OR r.period_key = ($10::text[])[2])
    AND (r.tenant_id, r.feature, r.period_key) > (($11::text[])[1]::uuid, ($11::text[])[2], ($11::text[])[3])
    AND (r.generation = $1 OR $3::boolean AND r.generation = $2::int OR NOT $3::boolean AND r.generation = (
      SELECT b.generation FROM base b WHERE b.tenant_id IN (r.tenant_id, '00000000-0000-0000-0000-000000000000')
      ORDER BY b.flip DESC LIMIT 1))
  GROUP BY r.tenant_id, r.feature, r.period_key)
`

const readEntitlementDiff = entitlementSides + `
SELECT NULL::uuid, s.tenant_id, s.feature, s.period_key, NULL::uuid, s.live, s.rebuilt,
       CASE WHEN s.of_usage THEN s.delta::text END, NULL::bigint, NULL::bigint
FROM sides s
WHERE $12::boolean OR s.live IS DISTINCT FROM s.rebuilt
ORDER BY s.tenant_id, s.feature, s.period_key
LIMIT $13::int`

// How many keys there are, and how many differ.
const countEntitlementDiff = entitlementSides + `
SELECT NULL::uuid, NULL::text, NULL::text, NULL::text, NULL::text, count(*), count(*) FILTER (WHERE s.live IS DISTINCT FROM s.rebuilt)
FROM sides s LIMIT $12::int`
