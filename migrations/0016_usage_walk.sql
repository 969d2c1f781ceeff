-- +goose Up
-- Older instances go on beside it: it adds functions that they do not call.
--
-- usage_walk returns the positions of a tenant's recorded usage below a position, newest
-- first, and the position below which the next walk continues (1 at the beginning of the log).
-- It follows the chain that links the events of a topic by their previous positions, so that
-- it skips runs of verdicts, however long, such as those after an import. Where the
-- topic's events lie close together, it reads them by stretches of the primary key. It
-- ends after at_most positions, or once it has read rows_at_most rows.
-- +goose StatementBegin
CREATE FUNCTION usage_walk(
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
      SELECT l.position, l.tenant_id IS NOT DISTINCT FROM tenant AND l.subject = 1
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

-- The recorded positions of a tenant's rejections below a position, the newest first, as often as
-- each was rejected. The condition is that of the index event_log_rejections.
-- +goose StatementBegin
CREATE FUNCTION rejected_positions(of_tenant uuid, below bigint, at_most int) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant uuid := asking(of_tenant);
BEGIN
  RETURN QUERY
  SELECT split_part(l.dedupe_key, '/', 2)::bigint FROM event_log_rows l
   WHERE l.subject = 3 AND l.dedupe_key ~ '^x/[0-9]{1,18}/'
     AND l.tenant_id = tenant AND split_part(l.dedupe_key, '/', 2)::bigint < below
   ORDER BY split_part(l.dedupe_key, '/', 2)::bigint DESC LIMIT at_most;
END $$;
-- +goose StatementEnd
-- The positions of the verdicts of a figure in (after, up_to], in the order of the log. The condition
-- is that of the index event_log_verdicts, whose first column is a hash of the figure: what the
-- verdicts say decides. IS NOT DISTINCT FROM keeps the planner off the other indexes.
-- +goose StatementBegin
CREATE FUNCTION verdict_positions(of_partition smallint, of_tenant uuid, of_feature text, of_period text, after bigint, up_to bigint, at_most int)
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
     AND uuid_hash_extended(l.tenant_id, hashtextextended(CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', 2) WHEN l.body::text ~* '\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(l.body ->> 'feature', l.body #>> '{validated,feature}') END COLLATE "C",
           hashtextextended(CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', -2) WHEN l.body::text ~* '\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(l.body ->> 'periodKey', l.body #>> '{validated,periodKey}') END COLLATE "C", 0))) = figure
     AND l.position > after AND l.position <= up_to
     AND l.partition IS NOT DISTINCT FROM of_partition AND l.tenant_id IS NOT DISTINCT FROM tenant
   ORDER BY l.position LIMIT at_most;
END $$;
-- +goose StatementEnd

-- Which of a tenant's verdicts failed to fold into the aggregates, or were not carried by the
-- pipe, and why. The condition is that of the index event_log_failures.
-- +goose StatementBegin
CREATE FUNCTION failed_verdicts(of_tenant uuid, of_positions bigint[])
RETURNS TABLE (verdict bigint, code text, reason text)
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 1
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  tenant uuid := asking(of_tenant);
BEGIN
  RETURN QUERY
  SELECT given.number, coalesce(l.body ->> 'code', ''), coalesce(l.body ->> 'reason', '')
    FROM unnest(of_positions) AS given (number)
    JOIN event_log_rows l ON l.subject IN (10, 11) AND l.tenant_id = tenant AND CASE WHEN l.body::text ~* '\\u(0000|d[89a-f])' THEN NULL ELSE l.body ->> 'sourcePosition' END = given.number::text
   WHERE l.subject = 10 OR EXISTS (SELECT FROM log_origins o WHERE o.id = l.origin AND o.actor_id = 'meterplex-usage-aggregator')
   ORDER BY l.position;
END $$;
-- +goose StatementEnd
-- The positions in (after, up_to] of the events of a producer's event: the recorded one and its
-- verdict, by their keys; what became of it, by the conditions of the indexes event_log_fates
-- and event_log_letters, with the dead letters of the event.
-- +goose StatementBegin
CREATE FUNCTION usage_stream(
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
       AND CASE WHEN l.body::text ~* '\\u(0000|d[89a-f])' THEN NULL
                ELSE coalesce(l.body ->> 'eventId', l.body #>> '{usage,eventId}', l.body #>> '{validated,eventId}',
                  l.body #>> '{payload,eventId}', l.body #>> '{payload,usage,eventId}', l.body #>> '{payload,validated,eventId}') END = of_name
    UNION
    SELECT l.position, l.subject, l.correlation_id FROM unnest(of_letters) AS given (letter)
     CROSS JOIN LATERAL (SELECT e.position, e.subject, e.correlation_id FROM event_log_rows e
       WHERE e.subject IN (13, 14, 15, 16) AND e.tenant_id = tenant AND e.partition IS NOT DISTINCT FROM of_partition
         AND CASE WHEN e.body::text ~* '\\u(0000|d[89a-f])' THEN NULL ELSE e.body ->> 'deadLetterId' END = given.letter OFFSET 0) l) f
   WHERE f.position > after AND f.position <= up_to
     AND (of_subjects IS NULL OR f.subject = ANY (of_subjects))
     AND (of_correlation IS NULL OR f.correlation_id IS NOT DISTINCT FROM of_correlation)
   ORDER BY CASE WHEN newest_first THEN -f.position ELSE f.position END LIMIT at_most;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION usage_stream, usage_walk, rejected_positions, verdict_positions, failed_verdicts FROM PUBLIC;
GRANT EXECUTE ON FUNCTION usage_stream, usage_walk, rejected_positions, verdict_positions, failed_verdicts TO meterplex_worker, meterplex_tenant;
