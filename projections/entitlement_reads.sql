-- Replaces the grants of the tenants in $2 by the rows of $3 to $11, and adds the
-- sums of $12 to $15 to what was used. One statement: each table is touched once,
-- and a grant that is replaced under its old key is updated, not deleted.
WITH gone AS (
  DELETE FROM entitlement_grants g
  WHERE g.generation = $1::int AND g.tenant_id = ANY ($2::uuid[])
    AND (g.tenant_id, g.feature) NOT IN (SELECT * FROM unnest($3::uuid[], $4::text[]))),
granted AS (
  INSERT INTO entitlement_grants
    (generation, tenant_id, feature, subscription_id, type, unit, "limit", limit_behavior, reset_period, on_ingest)
  SELECT $1::int, n.*
  FROM unnest($3::uuid[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::text[], $11::text[])
    AS n (tenant_id, feature, subscription_id, type, unit, "limit", limit_behavior, reset_period, on_ingest)
  ON CONFLICT (generation, tenant_id, feature) DO UPDATE SET
    subscription_id = excluded.subscription_id, type = excluded.type, unit = excluded.unit, "limit" = excluded."limit",
    limit_behavior = excluded.limit_behavior, reset_period = excluded.reset_period, on_ingest = excluded.on_ingest)
INSERT INTO entitlement_usage AS u (generation, tenant_id, feature, period_key, used)
SELECT $1::int, n.tenant_id, n.feature, n.period_key, n.used::numeric
FROM unnest($12::uuid[], $13::text[], $14::text[], $15::text[]) AS n (tenant_id, feature, period_key, used)
ON CONFLICT (generation, tenant_id, feature, period_key) DO UPDATE SET used = u.used + excluded.used
