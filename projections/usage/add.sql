-- Adds a batch's sums, given in the order of the key so that two batches never
-- wait for each other in a circle. Amounts come as text: a sum may exceed bigint.
-- Returns how many verdicts each row has now, in the order given.
INSERT INTO usage_aggregates AS a
  (generation, partition, tenant_id, feature, period_key, subscription_id,
   amount, event_count, applied_count, period_start, period_end, last_event_at)
SELECT $1::int, n.partition, n.tenant_id, n.feature, n.period_key, n.subscription_id,
       n.amount::numeric, n.event_count, n.applied_count, n.period_start, n.period_end, n.last_event_at
FROM unnest($2::smallint[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::text[],
            $8::bigint[], $9::bigint[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[])
  AS n (partition, tenant_id, feature, period_key, subscription_id, amount,
        event_count, applied_count, period_start, period_end, last_event_at)
ON CONFLICT (generation, tenant_id, feature, period_key, subscription_id) DO UPDATE SET
  amount        = a.amount + excluded.amount,
  event_count   = a.event_count + excluded.event_count,
  applied_count = a.applied_count + excluded.applied_count,
  last_event_at = GREATEST(a.last_event_at, excluded.last_event_at)
RETURNING a.applied_count
