-- Replaces the grants of the tenants in $2 by the rows of $3 to $11. One statement:
-- a grant that is replaced under its old key is updated, not deleted.
WITH gone AS (
  DELETE FROM entitlement_grants g
  WHERE g.generation = $1::int AND g.tenant_id = ANY ($2::uuid[])
    AND (g.tenant_id, g.feature) NOT IN (SELECT * FROM unnest($3::uuid[], $4::text[])))
INSERT INTO entitlement_grants
  (generation, tenant_id, feature, subscription_id, type, unit, "limit", limit_behavior, reset_period, on_ingest)
SELECT $1::int, n.*
FROM unnest($3::uuid[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::text[], $11::text[])
  AS n (tenant_id, feature, subscription_id, type, unit, "limit", limit_behavior, reset_period, on_ingest)
ON CONFLICT (generation, tenant_id, feature) DO UPDATE SET
  subscription_id = excluded.subscription_id, type = excluded.type, unit = excluded.unit, "limit" = excluded."limit",
  limit_behavior = excluded.limit_behavior, reset_period = excluded.reset_period, on_ingest = excluded.on_ingest
