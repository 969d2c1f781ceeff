-- Writes dead letters as the fold left them.
INSERT INTO dead_letter_events AS d
  (generation, id, partition, tenant_id, stage, status, code, reason, details, producer_event_id, feature,
   source_position, topic, kafka_partition, kafka_offset, payload, retry_count, first_failed_at, last_failed_at)
SELECT $1::int, n.id, n.partition, n.tenant_id, n.stage, n.status, n.code, n.reason, n.details::json, n.producer_event_id, n.feature,
       n.source_position, n.topic, n.kafka_partition, n.kafka_offset, n.payload::json, n.retry_count, n.first_failed_at, n.last_failed_at
FROM unnest($2::uuid[], $3::smallint[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[],
            $12::bigint[], $13::text[], $14::smallint[], $15::bigint[], $16::text[], $17::int[], $18::timestamptz[], $19::timestamptz[])
  AS n (id, partition, tenant_id, stage, status, code, reason, details, producer_event_id, feature,
        source_position, topic, kafka_partition, kafka_offset, payload, retry_count, first_failed_at, last_failed_at)
ON CONFLICT (generation, id) DO UPDATE SET
  stage = excluded.stage, status = excluded.status, code = excluded.code, reason = excluded.reason, details = excluded.details,
  producer_event_id = excluded.producer_event_id, feature = excluded.feature, source_position = excluded.source_position, topic = excluded.topic, kafka_partition = excluded.kafka_partition,
  kafka_offset = excluded.kafka_offset, payload = excluded.payload, retry_count = excluded.retry_count, last_failed_at = excluded.last_failed_at
