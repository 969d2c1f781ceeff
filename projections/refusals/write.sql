-- Writes groups of refused usage as the fold left them.
INSERT INTO usage_refusals AS r (generation, partition, tenant_id, code, feature, count, first_at, last_at, samples)
SELECT $1::int, n.partition, n.tenant_id, n.code, n.feature, n.count, n.first_at, n.last_at, n.samples::json
FROM unnest($2::smallint[], $3::uuid[], $4::text[], $5::text[], $6::bigint[], $7::timestamptz[], $8::timestamptz[], $9::text[])
  AS n (partition, tenant_id, code, feature, count, first_at, last_at, samples)
ON CONFLICT (generation, tenant_id, code, feature) DO UPDATE SET
  count = excluded.count, first_at = excluded.first_at, last_at = excluded.last_at, samples = excluded.samples
