-- Adds a batch's sums, given in the order of the key so that two batches never
-- wait for each other in a circle. Amounts come as text: a sum may exceed bigint.
INSERT INTO usage_series AS s (generation, partition, tenant_id, feature, hour, group_values, amount, event_count)
SELECT $1::int, n.partition, n.tenant_id, n.feature, n.hour, n.group_values, n.amount::numeric, n.event_count
FROM unnest($2::smallint[], $3::uuid[], $4::text[], $5::timestamptz[], $6::text[], $7::text[], $8::bigint[])
  AS n (partition, tenant_id, feature, hour, group_values, amount, event_count)
ON CONFLICT (generation, tenant_id, feature, hour, group_values) DO UPDATE SET
  amount = s.amount + excluded.amount, event_count = s.event_count + excluded.event_count
