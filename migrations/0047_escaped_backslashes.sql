-- +goose NO TRANSACTION
-- +goose Up
-- Stop all instances first: they read the log by the indexes that this replaces.
--
-- The expressions of these indexes have NULL for a body with \u0000 or half of a surrogate pair, which the server cannot read as text (0017). They took an
-- escaped backslash before such letters, as in "CORP\\udaya", for that escape: the events of usage with such an id were not found. An escape
-- begins behind an even number of backslashes.
SET lock_timeout = 0;

DROP INDEX CONCURRENTLY IF EXISTS event_log_verdicts_47;
CREATE INDEX CONCURRENTLY event_log_verdicts_47 ON event_log_rows (
    uuid_hash_extended(tenant_id, hashtextextended(CASE WHEN body::text LIKE '[%' THEN split_part(body::text, '"', 2) WHEN body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(body ->> 'feature', body #>> '{validated,feature}') END COLLATE "C",
      hashtextextended(CASE WHEN body::text LIKE '[%' THEN split_part(body::text, '"', -2) WHEN body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(body ->> 'periodKey', body #>> '{validated,periodKey}') END COLLATE "C", 0))), position)
  WHERE subject IN (2, 12);
DROP INDEX CONCURRENTLY IF EXISTS event_log_failures_47;
CREATE INDEX CONCURRENTLY event_log_failures_47 ON event_log_rows (tenant_id, (CASE WHEN body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE body ->> 'sourcePosition' END)) WHERE subject IN (10, 11);
DROP INDEX CONCURRENTLY IF EXISTS event_log_fates_47;
CREATE INDEX CONCURRENTLY event_log_fates_47 ON event_log_rows (tenant_id, (CASE WHEN body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL
    ELSE coalesce(body ->> 'eventId', body #>> '{usage,eventId}', body #>> '{validated,eventId}',
      body #>> '{payload,eventId}', body #>> '{payload,usage,eventId}', body #>> '{payload,validated,eventId}') END))
  WHERE subject IN (3, 4, 6, 10, 11, 12);
DROP INDEX CONCURRENTLY IF EXISTS event_log_letters_47;
CREATE INDEX CONCURRENTLY event_log_letters_47 ON event_log_rows (tenant_id, (CASE WHEN body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE body ->> 'deadLetterId' END)) WHERE subject IN (13, 14, 15, 16);

INSERT INTO required_migrations VALUES (47, 'they would read the whole log for each figure, correction and close') ON CONFLICT DO NOTHING;

DROP INDEX CONCURRENTLY IF EXISTS event_log_verdicts;
ALTER INDEX IF EXISTS event_log_verdicts_47 RENAME TO event_log_verdicts;
DROP INDEX CONCURRENTLY IF EXISTS event_log_failures;
ALTER INDEX IF EXISTS event_log_failures_47 RENAME TO event_log_failures;
DROP INDEX CONCURRENTLY IF EXISTS event_log_fates;
ALTER INDEX IF EXISTS event_log_fates_47 RENAME TO event_log_fates;
DROP INDEX CONCURRENTLY IF EXISTS event_log_letters;
ALTER INDEX IF EXISTS event_log_letters_47 RENAME TO event_log_letters;
RESET lock_timeout;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION verdict_positions(of_partition smallint, of_tenant uuid, of_feature text, of_period text, after bigint, up_to bigint, at_most int)
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant uuid   := asking(of_tenant);
  figure bigint := uuid_hash_extended(tenant, hashtextextended(of_feature COLLATE "C", hashtextextended(of_period COLLATE "C", 0)));
BEGIN
  RETURN QUERY
  SELECT l.position FROM event_log_rows l
   WHERE l.subject IN (2, 12)
     AND uuid_hash_extended(l.tenant_id, hashtextextended(CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', 2) WHEN l.body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(l.body ->> 'feature', l.body #>> '{validated,feature}') END COLLATE "C",
           hashtextextended(CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', -2) WHEN l.body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(l.body ->> 'periodKey', l.body #>> '{validated,periodKey}') END COLLATE "C", 0))) = figure
     AND l.position > after AND l.position <= up_to
     AND l.partition IS NOT DISTINCT FROM of_partition AND l.tenant_id IS NOT DISTINCT FROM tenant
   ORDER BY l.position LIMIT at_most;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION failed_verdicts(of_tenant uuid, of_positions bigint[])
RETURNS TABLE (verdict bigint, code text, reason text)
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 1
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  tenant uuid := asking(of_tenant);
BEGIN
  RETURN QUERY
  SELECT given.number, coalesce(l.body ->> 'code', ''), coalesce(l.body ->> 'reason', '')
    FROM unnest(of_positions) AS given (number)
    JOIN event_log_rows l ON l.subject IN (10, 11) AND l.tenant_id = tenant AND CASE WHEN l.body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE l.body ->> 'sourcePosition' END = given.number::text
   WHERE l.subject = 10 OR EXISTS (SELECT FROM log_origins o WHERE o.id = l.origin AND o.actor_id = 'meterplex-usage-aggregator')
   ORDER BY l.position;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION usage_stream(
  of_partition smallint, of_tenant uuid, of_name text, of_recorded bigint, of_letters text[],
  after bigint, up_to bigint, of_subjects smallint[], of_correlation uuid, newest_first boolean, at_most int)
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 10
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant uuid := asking(of_tenant);
BEGIN
  RETURN QUERY
  SELECT f.position FROM (
    SELECT l.position, l.subject, l.correlation_id FROM event_log_rows l
     WHERE l.partition = of_partition AND l.tenant_id = tenant AND l.dedupe_key = 'u/' || of_name
    UNION
    SELECT l.position, l.subject, l.correlation_id FROM event_log_rows l
     WHERE l.partition = of_partition AND l.tenant_id = tenant AND l.dedupe_key = 'v/' || of_recorded
    UNION
    SELECT l.position, l.subject, l.correlation_id FROM event_log_rows l
     WHERE l.subject IN (3, 4, 6, 10, 11, 12) AND l.tenant_id = tenant AND l.partition IS NOT DISTINCT FROM of_partition
       AND CASE WHEN l.body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL
                ELSE coalesce(l.body ->> 'eventId', l.body #>> '{usage,eventId}', l.body #>> '{validated,eventId}',
                  l.body #>> '{payload,eventId}', l.body #>> '{payload,usage,eventId}', l.body #>> '{payload,validated,eventId}') END = of_name
    UNION
    SELECT l.position, l.subject, l.correlation_id FROM unnest(of_letters) AS given (letter)
     CROSS JOIN LATERAL (SELECT e.position, e.subject, e.correlation_id FROM event_log_rows e
       WHERE e.subject IN (13, 14, 15, 16) AND e.tenant_id = tenant AND e.partition IS NOT DISTINCT FROM of_partition
         AND CASE WHEN e.body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE e.body ->> 'deadLetterId' END = given.letter OFFSET 0) l) f
   WHERE f.position > after AND f.position <= up_to
     AND (of_subjects IS NULL OR f.subject = ANY (of_subjects))
     AND (of_correlation IS NULL OR f.correlation_id IS NOT DISTINCT FROM of_correlation)
   ORDER BY CASE WHEN newest_first THEN -f.position ELSE f.position END LIMIT at_most;
END $$;
-- +goose StatementEnd
