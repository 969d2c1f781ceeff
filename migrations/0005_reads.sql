-- +goose Up
-- What a receipt and a list of usage ask for: the dead letters of an event.
CREATE INDEX dead_letter_events_by_event ON dead_letter_events (generation, tenant_id, producer_event_id);

-- How far a consumer is for one tenant, in numbers alone. A tenant's role sees no
-- row of another tenant, so that it cannot find the last verdict of a partition
-- by itself; these two functions look for it and tell positions, nothing else.
-- They read the rows under the log, since the log itself shows its owner nothing.
--
-- decided: every event of the tenant recorded up to there has its verdict.
-- passed: and every such verdict is folded by the consumer (of a consumer of the
-- whole log: every event, too). Both are looked for within a span of positions;
-- where that does not reach, they are lower than what is true, never higher.
-- +goose StatementBegin
CREATE FUNCTION consumer_standing(
  of_partition smallint, of_tenant uuid, of_projection text, of_generation int, of_consumer text, whole_log boolean, span bigint,
  OUT head bigint, OUT decided bigint, OUT last_validated bigint, OUT folded bigint, OUT passed bigint,
  OUT generation int, OUT moved_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
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
            WHERE p.projection = of_projection AND p.tenant_id IN (of_tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY p.tenant_id DESC LIMIT 1)) -- nil, the default, sorts first
   WHERE h.partition = of_partition;

  decided := head;
  IF checked < last_raw THEN
    SELECT l.position - 1 INTO decided FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position > checked AND l.position <= least(last_raw, checked + span)
       AND l.topic = 1 AND l.tenant_id = of_tenant
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
     AND l.tenant_id = of_tenant AND l.subject = 2
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
       AND l.tenant_id = of_tenant AND l.subject = 12
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
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
  SELECT o.base_offset + (
           SELECT count(*) FROM event_log_rows l
            WHERE l.partition = of_partition AND l.position >= o.from_position AND l.position < of_position AND l.topic = of_topic),
         o.published_at
    FROM (SELECT * FROM outbox_publications
           WHERE partition = of_partition AND topic = of_topic AND from_position <= of_position
           ORDER BY from_position DESC LIMIT 1) o
   WHERE o.to_position >= of_position AND o.base_offset >= 0
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION consumer_standing, broker_place FROM PUBLIC;
GRANT EXECUTE ON FUNCTION consumer_standing, broker_place TO meterplex_worker, meterplex_tenant;
