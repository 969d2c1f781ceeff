package deadletters

// letterSides are dead letters side by side as objects; parameters as for usageSides,
// except $11, which begins with the id of the last letter.
const letterSides = `
WITH base AS MATERIALIZED (
  SELECT * FROM unnest($4::uuid[], $5::text[], $6::int[], $7::int[]) AS b (tenant_id, period_key, flip, generation)),
rows AS (
  SELECT d.generation, d.id, d.tenant_id, d.feature,
         json_build_object('stage', d.stage, 'status', d.status, 'code', d.code, 'reason', d.reason, 'details', d.details,
           'eventId', d.producer_event_id, 'feature', d.feature, 'sourcePosition', d.partition || '-' || d.source_position, 'topic',
           d.topic,
           'kafkaPartition', d.kafka_partition, 'kafkaOffset', d.kafka_offset, 'payload', d.payload, 'retryCount', d.retry_count,
           'firstFailedAt', to_char(d.first_failed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'lastFailedAt', to_char(d.last_failed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))::text AS says
  FROM dead_letter_events d
  WHERE d.generation = ANY ($1::int || $7::int[]) AND d.tenant_id BETWEEN $8::uuid AND $9::uuid AND d.id > ($11::text[])[1]::uuid
    AND (($10::text[])[1] = '' OR d.feature = ($10::text[])[1])),
sides AS (
  SELECT r.id, r.tenant_id, max(r.feature) AS feature,
         max(r.says) FILTER (WHERE r.generation <> $1) AS live, max(r.says) FILTER (WHERE r.generation = $1) AS rebuilt
  FROM rows r
  WHERE r.generation = $1 OR $3::boolean AND r.generation = $2::int OR NOT $3::boolean AND r.generation = (
      SELECT b.generation FROM base b WHERE b.tenant_id IN (r.tenant_id, '00000000-0000-0000-0000-000000000000')
      ORDER BY b.flip DESC LIMIT 1)
  GROUP BY r.id, r.tenant_id)
`

const readLetterDiff = letterSides + `
SELECT s.id, s.tenant_id, s.feature, NULL::text, NULL::uuid, s.live, s.rebuilt, NULL::text, NULL::bigint, NULL::bigint
FROM sides s
WHERE $12::boolean OR s.live IS DISTINCT FROM s.rebuilt
ORDER BY s.id
LIMIT $13::int`

// How many dead letters there are, and how many differ.
const countLetterDiff = letterSides + `
SELECT NULL::uuid, NULL::text, NULL::text, NULL::text, NULL::text, count(*), count(*) FILTER (WHERE s.live IS DISTINCT FROM s.rebuilt)
FROM sides s LIMIT $12::int`
