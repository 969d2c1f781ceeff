-- Adds a batch's sums by grant, in the order of the key, behind those of the figures.
INSERT INTO usage_by_grant AS a
  (generation, partition, tenant_id, feature, period_key, subscription_id, grant_number, amount, event_count, applied_count)
SELECT $1::int, n.partition, n.tenant_id, n.feature, n.period_key, n.subscription_id, n.grant_number, n.amount::numeric, n.event_count, n.applied_count
FROM unnest($2::smallint[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::bigint[], $8::text[], $9::bigint[], $10::bigint[])
  AS n (partition, tenant_id, feature, period_key, subscription_id, grant_number, amount, event_count, applied_count)
ON CONFLICT (generation, tenant_id, feature, period_key, subscription_id, grant_number) DO UPDATE SET
  amount        = a.amount + excluded.amount,
  event_count   = a.event_count + excluded.event_count,
  applied_count = a.applied_count + excluded.applied_count
