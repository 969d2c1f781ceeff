package refusals

// refusalSides are groups side by side as objects; parameters as for usageSides, except $11, which begins with the id of
// the last group. The id follows from the key of the group.
const refusalSides = `
WITH base AS MATERIALIZED (
  SELECT * FROM unnest($4::uuid[], $5::text[], $6::int[], $7::int[]) AS b (tenant_id, period_key, flip, generation)),
rows AS (
  SELECT r.generation, r.tenant_id, r.feature, md5(concat_ws(' ', r.tenant_id, r.code, r.feature))::uuid AS id,
         json_build_object('code', r.code, 'feature', r.feature, 'count', r.count, 'first', to_char(r.first_at AT TIME ZONE 'UTC',
         'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'last', to_char(r.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'samples', r.samples)::text AS says
  FROM usage_refusals r
  WHERE r.generation = ANY ($1::int || $7::int[]) AND r.tenant_id BETWEEN $8::uuid AND $9::uuid
    AND (($10::text[])[1] = '' OR r.feature = ($10::text[])[1])),
sides AS (
  SELECT r.id, r.tenant_id, r.feature,
         max(r.says) FILTER (WHERE r.generation <> $1) AS live, max(r.says) FILTER (WHERE r.generation = $1) AS rebuilt
  FROM rows r
  WHERE r.id > ($11::text[])[1]::uuid
    AND (r.generation = $1 OR $3::boolean AND r.generation = $2::int OR NOT $3::boolean AND r.generation = (
      SELECT b.generation FROM base b WHERE b.tenant_id IN (r.tenant_id, '00000000-0000-0000-0000-000000000000')
      ORDER BY b.flip DESC LIMIT 1))
  GROUP BY r.id, r.tenant_id, r.feature)
`

const readRefusalDiff = refusalSides + `
SELECT s.id, s.tenant_id, s.feature, NULL::text, NULL::uuid, s.live, s.rebuilt, NULL::text, NULL::bigint, NULL::bigint
FROM sides s
WHERE $12::boolean OR s.live IS DISTINCT FROM s.rebuilt
ORDER BY s.id
LIMIT $13::int`

// How many groups there are, and how many differ.
const countRefusalDiff = refusalSides + `
SELECT NULL::uuid, NULL::text, NULL::text, NULL::text, NULL::text, count(*), count(*) FILTER (WHERE s.live IS DISTINCT FROM s.rebuilt)
FROM sides s LIMIT $12::int`
