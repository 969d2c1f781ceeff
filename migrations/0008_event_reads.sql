-- +goose Up
-- How the log is read by people. As in 0005, the functions below go through a
-- stretch of a partition by its primary key, for the role of tenants too, and tell
-- positions alone, never what stands there. No index is added: ingestion would pay
-- for it with each event.

-- The greatest position recorded before a moment, or at it where inclusive; 0 for
-- none. Times of recording never fall within a partition. A position that is gone
-- from the table is older than any that is there.
-- +goose StatementBegin
CREATE FUNCTION recorded_until(of_partition smallint, moment timestamptz, inclusive boolean) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  low    bigint := 0;
  high   bigint;
  middle bigint;
  moved  timestamptz;
BEGIN
  SELECT h.position INTO high FROM log_heads h WHERE h.partition = of_partition;
  WHILE low < high LOOP
    middle := (low + high + 1) / 2;
    SELECT l.recorded_at INTO moved FROM event_log_rows l WHERE l.partition = of_partition AND l.position = middle;
    IF NOT FOUND OR moved < moment OR inclusive AND moved = moment THEN
      low := middle;
    ELSE
      high := middle - 1;
    END IF;
  END LOOP;
  RETURN low;
END $$;
-- +goose StatementEnd

-- Whether an event belongs to a stream, by what it says. Which subjects can belong
-- to a kind of stream at all is for the caller to say. Of usage, what happens to
-- dead letters names the dead letter only: those of the event are given.
-- +goose StatementBegin
CREATE FUNCTION is_in_stream(subject smallint, event_id uuid, payload json, kind text, name text, letters text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE kind
    WHEN '' THEN true
    WHEN 'usage' THEN name IN (payload ->> 'eventId', payload #>> '{usage,eventId}', payload #>> '{validated,eventId}',
        payload #>> '{payload,eventId}', payload #>> '{payload,usage,eventId}', payload #>> '{payload,validated,eventId}')
      OR payload ->> 'deadLetterId' = ANY (letters)
    WHEN 'dead-letter' THEN payload ->> 'deadLetterId' = name OR event_id::text = name
    WHEN 'rebuild' THEN payload ->> 'rebuildId' = name OR event_id::text = name
    WHEN 'feature' THEN payload ->> 'lookupKey' = name
    WHEN 'plan' THEN payload ->> 'key' = name
    ELSE name IN (payload ->> 'id', payload #>> '{old,id}', payload #>> '{new,id}')
  END
$$;
-- +goose StatementEnd

-- The positions of a stretch (after, up_to] that are asked for. Tenant NULL is all
-- of them, and nobody's where a tenant asks.
-- +goose StatementBegin
CREATE FUNCTION log_positions(
  of_partition smallint, of_tenant uuid, after bigint, up_to bigint, of_subjects smallint[], of_correlation uuid,
  of_kind text, of_name text, of_letters text[], newest_first boolean, at_most int)
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant   uuid    := asking(of_tenant);
  everyone boolean := of_tenant IS NULL AND current_setting('role') <> 'meterplex_tenant';
BEGIN
  IF newest_first THEN
    RETURN QUERY
    SELECT l.position FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position > after AND l.position <= up_to
       AND (everyone OR l.tenant_id IS NOT DISTINCT FROM tenant)
       AND (of_subjects IS NULL OR l.subject = ANY (of_subjects))
       AND (of_correlation IS NULL OR l.correlation_id IS NOT DISTINCT FROM of_correlation)
       AND (of_kind = '' OR is_in_stream(l.subject, l.event_id, l.payload, of_kind, of_name, of_letters))
     ORDER BY l.position DESC LIMIT at_most;
  ELSE
    RETURN QUERY
    SELECT l.position FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position > after AND l.position <= up_to
       AND (everyone OR l.tenant_id IS NOT DISTINCT FROM tenant)
       AND (of_subjects IS NULL OR l.subject = ANY (of_subjects))
       AND (of_correlation IS NULL OR l.correlation_id IS NOT DISTINCT FROM of_correlation)
       AND (of_kind = '' OR is_in_stream(l.subject, l.event_id, l.payload, of_kind, of_name, of_letters))
     ORDER BY l.position LIMIT at_most;
  END IF;
END $$;
-- +goose StatementEnd

-- Where an event of an id stands, if it was recorded between two moments, among the
-- first positions of a span from the earlier one. No row where it does not.
-- +goose StatementBegin
CREATE FUNCTION position_of_event(of_id uuid, of_tenant uuid, of_partitions smallint[], recorded_from timestamptz, recorded_to timestamptz, span bigint)
RETURNS TABLE (found_partition smallint, found_position bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 1
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant   uuid    := asking(of_tenant);
  everyone boolean := of_tenant IS NULL AND current_setting('role') <> 'meterplex_tenant';
  low      bigint;
BEGIN
  FOREACH found_partition IN ARRAY of_partitions LOOP
    low := recorded_until(found_partition, recorded_from, false);
    SELECT l.position INTO found_position FROM event_log_rows l
     WHERE l.partition = found_partition AND l.position > low AND l.position <= least(low + span, recorded_until(found_partition, recorded_to, true))
       AND l.event_id = of_id AND (everyone OR l.tenant_id IS NOT DISTINCT FROM tenant)
     ORDER BY l.position LIMIT 1;
    IF FOUND THEN
      RETURN NEXT;
      RETURN;
    END IF;
  END LOOP;
END $$;
-- +goose StatementEnd

-- The positions of a stretch (after, up_to] whose events the given ones caused, or
-- events that those caused: a cause stands before its effects.
-- +goose StatementBegin
CREATE FUNCTION caused_positions(of_partition smallint, of_tenant uuid, after bigint, up_to bigint, of_causes uuid[], at_most int)
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 10
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant uuid   := asking(of_tenant);
  known  uuid[] := of_causes;
  effect record;
BEGIN
  FOR effect IN
    SELECT l.position, l.event_id, l.causation_id FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position > after AND l.position <= up_to
       AND l.tenant_id IS NOT DISTINCT FROM tenant AND l.causation_id IS NOT NULL
     ORDER BY l.position
  LOOP
    CONTINUE WHEN effect.causation_id <> ALL (known);
    known := known || effect.event_id;
    RETURN NEXT effect.position;
    at_most := at_most - 1;
    EXIT WHEN at_most = 0;
  END LOOP;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION recorded_until, is_in_stream, log_positions, position_of_event, caused_positions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION recorded_until, log_positions, position_of_event, caused_positions TO meterplex_worker, meterplex_tenant;
