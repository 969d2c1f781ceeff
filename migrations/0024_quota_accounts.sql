-- +goose Up
-- Stop all instances first. It reads the log once: 10 million events take less than a minute.
INSERT INTO required_migrations VALUES (24, 'their verdicts change no account, so that a limit would be passed');

-- What tenants have used of QUOTA features and hold, by period. The log changes a row when it writes the row of an event, under
-- the lock of the head of the tenant's partition; accounts have no other lock.
CREATE TABLE quota_accounts (
  tenant_id  uuid NOT NULL,
  feature    text COLLATE "C" NOT NULL,
  period_key text COLLATE "C" NOT NULL,
  used       numeric NOT NULL DEFAULT 0, -- a bigint sum can overflow
  held       numeric NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, feature, period_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
ALTER TABLE quota_accounts ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON quota_accounts FOR SELECT TO meterplex_tenant
  USING (tenant_id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);
CREATE POLICY worker ON quota_accounts TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE ON quota_accounts TO meterplex_worker;
GRANT SELECT ON quota_accounts TO meterplex_tenant;

-- Verdicts of QUOTA features, less those in discarded dead letters. The texts of a body in short are between quotes: the
-- feature is the first, and none but the producer's id, the second, holds a quote.
LOCK TABLE log_heads IN EXCLUSIVE MODE;
CREATE TEMPORARY TABLE verdict_sums ON COMMIT DROP AS
SELECT v.tenant_id, v.feature, v.period_key, sum(v.amount) AS used
FROM (
  SELECT l.tenant_id,
    CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', 2) ELSE l.body ->> 'feature' END COLLATE "C" AS feature,
    CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', -2) ELSE l.body ->> 'periodKey' END COLLATE "C" AS period_key,
    CASE WHEN l.body::text LIKE '[%' THEN substr(split_part(l.body::text, ',', 1), 2) ELSE l.body ->> 'amount' END::numeric AS amount
  FROM event_log_rows l
  WHERE l.subject = 2 AND CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', -4) ELSE l.body ->> 'featureType' END = 'QUOTA') v
GROUP BY 1, 2, 3;
CREATE TEMPORARY TABLE discarded_sums ON COMMIT DROP AS
SELECT v.tenant_id, v.payload ->> 'feature' COLLATE "C" AS feature, v.payload ->> 'periodKey' COLLATE "C" AS period_key,
  sum((v.payload ->> 'amount')::numeric) AS used
FROM event_log_rows c
JOIN event_log_rows f ON f.partition = c.partition AND f.tenant_id = c.tenant_id AND f.dedupe_key = 'e/' || (c.payload ->> 'deadLetterId')
JOIN log_origins o ON o.id = f.origin
JOIN event_log_rows v ON v.partition = f.partition AND v.position = (f.payload ->> 'sourcePosition')::bigint
WHERE c.subject = 15 AND c.payload ->> 'status' = 'DISCARDED'
  AND (f.subject = 10 OR f.subject = 11 AND o.actor_id = 'meterplex-usage-aggregator')
  AND v.subject = 2 AND v.payload ->> 'featureType' = 'QUOTA'
GROUP BY 1, 2, 3;
INSERT INTO quota_accounts (tenant_id, feature, period_key, used)
SELECT s.tenant_id, s.feature, s.period_key, s.used - coalesce(d.used, 0)
FROM verdict_sums s LEFT JOIN discarded_sums d USING (tenant_id, feature, period_key);
ALTER TABLE quota_accounts FORCE ROW LEVEL SECURITY;

-- Recorded usage is every event of topic 1 except retries (subject 6).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION usage_walk(
  of_partition smallint, of_tenant uuid, below bigint, not_below bigint,
  of_feature text, used_from timestamptz, used_before timestamptz, at_most int, rows_at_most int,
  OUT positions bigint[], OUT next_below bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant uuid := asking(of_tenant);
  at     bigint; -- the next event of the topic
  size   bigint := least(1000, greatest(at_most, 16)); -- of a stretch
  low    bigint;
  read   bigint;
  hits   bigint[];
BEGIN
  positions := '{}';
  SELECT h.topic_positions[1] INTO at FROM log_heads h WHERE h.partition = of_partition;
  IF at >= below THEN
    SELECT l.previous_position INTO at FROM event_log_rows l WHERE l.partition = of_partition AND l.position = below AND l.topic = 1;
    IF NOT FOUND THEN
      SELECT l.position INTO at FROM event_log_rows l
       WHERE l.partition = of_partition AND l.position < below AND l.topic = 1 ORDER BY l.position DESC LIMIT 1;
    END IF;
  END IF;
  WHILE at >= greatest(not_below, 1) AND cardinality(positions) < at_most AND rows_at_most > 0 LOOP
    SELECT coalesce(array_agg(s.position ORDER BY s.position DESC) FILTER (WHERE s.wanted), '{}'), min(s.position), count(*) INTO hits, low, read FROM (
      SELECT l.position, l.tenant_id IS NOT DISTINCT FROM tenant AND l.subject <> 6
             AND (used_from IS NULL OR l.occurred_at >= used_from) AND (used_before IS NULL OR l.occurred_at < used_before)
             AND (of_feature = '' OR CASE WHEN json_typeof(l.body) = 'array' THEN l.body ->> 1 ELSE l.body ->> 'feature' END = of_feature) AS wanted
        FROM event_log_rows l
       WHERE l.partition = of_partition AND l.position <= at AND l.position > at - size AND l.position >= not_below AND l.topic = 1) s;
    rows_at_most := rows_at_most - least(size, at);
    positions := positions || hits;
    SELECT l.previous_position INTO at FROM event_log_rows l WHERE l.partition = of_partition AND l.position = low;
    IF 2 * read >= size THEN
      size := least(1000, 2 * size);
    ELSIF 8 * read < size THEN
      size := greatest(8, size / 2);
    END IF;
  END LOOP;
  IF cardinality(positions) >= at_most THEN
    positions := positions[:at_most];
    next_below := positions[at_most];
  ELSE
    next_below := greatest(coalesce(at, 0) + 1, not_below, 1);
  END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION usage_positions(
  of_partition smallint, of_tenant uuid, below bigint, not_below bigint,
  of_feature text, used_from timestamptz, used_before timestamptz, at_most int)
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant uuid := asking(of_tenant);
BEGIN
  RETURN QUERY
  SELECT l.position FROM event_log_rows l
   WHERE l.partition = of_partition AND l.position < below AND l.position >= not_below
     AND l.tenant_id IS NOT DISTINCT FROM tenant AND l.topic = 1 AND l.subject <> 6
     AND (used_from IS NULL OR l.occurred_at >= used_from) AND (used_before IS NULL OR l.occurred_at < used_before)
     AND (of_feature = '' OR l.payload ->> 'feature' = of_feature)
   ORDER BY l.position DESC LIMIT at_most;
END $$;
-- +goose StatementEnd

-- entitlement_reads/v3 counts admitted usage when it is recorded. A database with events gets it by a rebuild.
-- +goose StatementBegin
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM log_heads WHERE position > 0) THEN
    ALTER TABLE projection_generations NO FORCE ROW LEVEL SECURITY;
    UPDATE projection_generations SET fold_version = 'entitlement_reads/v3'
    WHERE projection = 'entitlement_reads' AND generation = 1 AND fold_version = 'entitlement_reads/v2';
    ALTER TABLE projection_generations FORCE ROW LEVEL SECURITY;
  END IF;
END $$;
-- +goose StatementEnd
