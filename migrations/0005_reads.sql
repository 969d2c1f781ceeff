-- +goose Up
-- What a receipt and a list of usage ask for: the dead letters of an event.
CREATE INDEX dead_letter_events_by_event ON dead_letter_events (generation, tenant_id, producer_event_id);

-- What can only be found by going through a stretch of a partition, which holds
-- the events of many tenants. The role of tenants sees no row of another's, so that
-- it cannot find the last verdict or the rank on a topic by itself; and the planner,
-- where it takes a tenant for small, would go through all of the tenant's events
-- instead of the stretch. These functions go through the stretch, and tell
-- positions and counts, never what stands there. They read the rows under the log,
-- since the log itself shows its owner nothing.
--
-- IS NOT DISTINCT FROM compares as = does, but keeps the planner off the index of
-- keys: only the primary key is left, whose plan is right for every tenant and so
-- may be kept.

-- asking is the tenant that may be told of: a tenant's role is told of itself alone.
-- +goose StatementBegin
CREATE FUNCTION asking(of_tenant uuid) RETURNS uuid
LANGUAGE sql STABLE SET search_path = public, pg_temp AS $$
  SELECT CASE WHEN current_setting('role') = 'meterplex_tenant'
              THEN NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid ELSE of_tenant END
$$;
-- +goose StatementEnd

-- How far a consumer is for one tenant.
-- decided: every event of the tenant recorded up to there has its verdict.
-- passed: and every such verdict is folded by the consumer (of a consumer of the
-- whole log: every event, too). Both are looked for within a span of positions;
-- where that does not reach, they are lower than what is true, never higher.
-- +goose StatementBegin
CREATE FUNCTION consumer_standing(
  of_partition smallint, of_tenant uuid, of_projection text, of_generation int, of_consumer text, whole_log boolean, span bigint,
  OUT head bigint, OUT decided bigint, OUT last_validated bigint, OUT folded bigint, OUT passed bigint,
  OUT generation int, OUT moved_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant      uuid := asking(of_tenant);
  last_raw    bigint;
  checked     bigint; -- the validator's checkpoint
  verdict     bigint; -- the tenant's first that is not folded
  verdict_raw bigint;
  cause_id    uuid;
  cause       bigint; -- what it is the verdict on
BEGIN
  SELECT h.position, h.topic_positions[1], h.topic_positions[2], v.position, x.position, x.generation, x.updated_at
    INTO head, last_raw, last_validated, checked, folded, generation, moved_at
    FROM log_heads h
    JOIN consumer_checkpoints v ON v.consumer = 'meterplex-usage-validator' AND v.generation = 1 AND v.partition = h.partition
    JOIN consumer_checkpoints x ON x.consumer = of_consumer AND x.partition = h.partition
     AND x.generation = coalesce(of_generation, (
           SELECT p.generation FROM projection_pointers p
            WHERE p.projection = of_projection AND p.tenant_id IN (tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY p.tenant_id DESC LIMIT 1)) -- nil, the default, sorts first
   WHERE h.partition = of_partition;

  decided := head;
  IF checked < last_raw THEN
    SELECT l.position - 1 INTO decided FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position > checked AND l.position <= least(last_raw, checked + span)
       AND l.topic = 1 AND l.tenant_id IS NOT DISTINCT FROM tenant
     ORDER BY l.position LIMIT 1;
    IF NOT FOUND THEN
      decided := CASE WHEN checked + span < last_raw THEN checked + span ELSE head END;
    END IF;
  END IF;

  passed := CASE WHEN whole_log THEN least(decided, folded) ELSE decided END;
  IF folded >= last_validated THEN
    RETURN;
  END IF;

  SELECT l.position, (l.payload ->> 'rawPosition')::bigint, l.causation_id INTO verdict, verdict_raw, cause_id FROM event_log_rows l
   WHERE l.partition = of_partition AND l.position > folded AND l.position <= least(last_validated, folded + span)
     AND l.tenant_id IS NOT DISTINCT FROM tenant AND l.subject = 2
   ORDER BY l.position LIMIT 1;
  IF FOUND THEN
    -- A first verdict's cause is the recorded event, a later one's is the retry.
    SELECT l.position INTO cause FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position = verdict_raw AND l.event_id = cause_id;
    IF NOT FOUND THEN
      SELECT l.position INTO cause FROM event_log_rows l
       WHERE l.partition = of_partition AND l.position < verdict AND l.position >= verdict - span AND l.event_id = cause_id
       ORDER BY l.position DESC LIMIT 1;
    END IF;
    passed := least(passed, coalesce(cause, verdict_raw) - 1);
  ELSIF folded + span < last_validated THEN
    -- Verdicts are in the order of what they are on, so that what the last folded
    -- one is on has passed, whoever's it is.
    SELECT (l.payload ->> 'rawPosition')::bigint INTO cause FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position <= folded AND l.position > folded - span AND l.subject = 2
     ORDER BY l.position DESC LIMIT 1;
    passed := least(passed, coalesce(cause, 0));
  END IF;

  IF NOT whole_log THEN -- a verdict that is to be folded again is the tenant's event, too
    SELECT l.position INTO cause FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position > folded AND l.position <= least(last_validated, folded + span, verdict)
       AND l.tenant_id IS NOT DISTINCT FROM tenant AND l.subject = 12
     ORDER BY l.position LIMIT 1;
    IF FOUND THEN
      passed := least(passed, cause - 1);
    END IF;
  END IF;
END $$;
-- +goose StatementEnd

-- Where an event lies on the broker: the rank among the topic's events is counted
-- over all tenants. No row where it is not published, or nobody noted where.
-- +goose StatementBegin
CREATE FUNCTION broker_place(of_partition smallint, of_topic smallint, of_position bigint)
RETURNS TABLE (broker_offset bigint, published_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 1
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
  RETURN QUERY
  SELECT o.base_offset + (
           SELECT count(*) FROM event_log_rows l
            WHERE l.partition = of_partition AND l.position >= o.from_position AND l.position < of_position AND l.topic = of_topic),
         o.published_at
    FROM (SELECT * FROM outbox_publications p
           WHERE p.partition = of_partition AND p.topic = of_topic AND p.from_position <= of_position
           ORDER BY p.from_position DESC LIMIT 1) o
   WHERE o.to_position >= of_position AND o.base_offset >= 0;
END $$;
-- +goose StatementEnd

-- The positions of a tenant's recorded usage in [not_below, below), the newest first.
-- +goose StatementBegin
CREATE FUNCTION usage_positions(
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
     AND l.tenant_id IS NOT DISTINCT FROM tenant AND l.subject = 1
     AND (used_from IS NULL OR l.occurred_at >= used_from) AND (used_before IS NULL OR l.occurred_at < used_before)
     AND (of_feature = '' OR l.payload ->> 'feature' = of_feature)
   ORDER BY l.position DESC LIMIT at_most;
END $$;
-- +goose StatementEnd

-- What of a tenant failed in a fold or on its way out and is no dead letter yet:
-- the positions of what failed, as far as a span from the dead letters' checkpoint.
-- Failures of read models beside the way to the aggregates do not count.
-- +goose StatementBegin
CREATE FUNCTION failing_positions(of_partition smallint, of_tenant uuid, folded bigint, span bigint)
RETURNS bigint[]
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant  uuid := asking(of_tenant);
  last    bigint;
  failing bigint[] := '{}';
BEGIN
  SELECT h.topic_positions[3] INTO last FROM log_heads h WHERE h.partition = of_partition;
  IF folded < last THEN
    SELECT coalesce(array_agg((l.payload ->> 'sourcePosition')::bigint), '{}') INTO failing FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position > folded AND l.position <= least(last, folded + span)
       AND l.tenant_id IS NOT DISTINCT FROM tenant AND l.subject IN (10, 11)
       AND (l.subject = 10 OR EXISTS (
             SELECT FROM log_origins o
              WHERE o.id = l.origin AND o.actor_id IN ('meterplex-usage-validator', 'meterplex-usage-aggregator')));
  END IF;
  RETURN failing;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION asking, consumer_standing, broker_place, usage_positions, failing_positions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION consumer_standing, broker_place, usage_positions, failing_positions TO meterplex_worker, meterplex_tenant;
