-- +goose Up
-- Erasures of the personal data of archived tenants, kept for ever. A row changes with the batch that it describes.
CREATE TABLE erasures (
  id           uuid PRIMARY KEY,
  tenant_id    uuid NOT NULL UNIQUE,
  saga_id      uuid NOT NULL,
  state        text COLLATE "C" NOT NULL CHECK (state IN ('RUNNING', 'ERASED')),
  reason       text NOT NULL,
  actor        text NOT NULL,
  requested_at timestamptz NOT NULL,
  up_to        bigint NOT NULL,            -- the events up to this number are erased: later ones have no personal data
  cursor       bigint NOT NULL DEFAULT 0,  -- the log is rewritten up to this number
  place        text NOT NULL DEFAULT '',   -- the read models are erased up to this place
  rewritten    bigint NOT NULL DEFAULT 0,
  ended_at     timestamptz,
  CHECK ((state = 'RUNNING') = (ended_at IS NULL))
);

-- A copy of an event in a dead letter, without personal data. Of other events than usage and verdicts, the id and the feature stay.
-- +goose StatementBegin
CREATE FUNCTION erased_copy(name text, payload text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = public, pg_temp AS $$
BEGIN
  RETURN CASE
    WHEN name = 'meterplex.usage.event.retried.v1' THEN erased_body(6::smallint, payload)
    WHEN name IN ('meterplex.usage.event.recorded.v1', 'meterplex.usage.event.admitted.v1', 'meterplex.usage.event.corrected.v1', 'meterplex.usage.event.retracted.v1',
      'meterplex.usage.event.validated.v1', 'meterplex.usage.event.reaggregated.v1') THEN erased_body(8::smallint, payload)
    ELSE erased_body(0::smallint, payload) END;
END $$;
-- +goose StatementEnd

-- The body of an event without personal data, all other members byte for byte; the body itself if it has none. It calls itself for usage (8), for samples
-- of refused usage (7) and for copies (0) in a body. What should be an object and is none becomes null. An escape that the server cannot read, such as \u0000, is hidden
-- from it: \u is read as \\u, and \\ as \\s.
-- +goose StatementBegin
CREATE FUNCTION erased_body(subject smallint, body text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = public, pg_temp AS $$
DECLARE
  readable json := replace(replace(body, '\\', '\\s'), '\u', '\\u');
  name text;
  member text;
  kept text[] := '{}';
BEGIN
  IF subject NOT IN (0, 1, 4, 6, 7, 8, 9, 10, 11, 19, 20, 30, 31) THEN
    RETURN body;
  END IF;
  IF json_typeof(readable) = 'array' AND subject IN (1, 20) THEN
    IF subject = 20 THEN
      kept := ARRAY(SELECT erased_body(7::smallint, e.value::text) FROM json_array_elements(readable) WITH ORDINALITY AS e (value, n) ORDER BY e.n);
    ELSE -- recorded usage in short: amount, feature, metadata, source
      kept := ARRAY[(readable -> 0)::text, (readable -> 1)::text] || CASE WHEN json_array_length(readable) > 3 THEN ARRAY['null', (readable -> 3)::text] END;
    END IF;
    RETURN '[' || replace(replace(array_to_string(kept, ','), '\\u', '\u'), '\\s', '\\') || ']';
  END IF;
  IF json_typeof(readable) <> 'object' THEN
    RETURN 'null';
  END IF;
  FOR name, member IN SELECT e.key, e.value::text FROM json_each(readable) e LOOP
    member := CASE
      WHEN name = 'metadata' OR subject = 7 AND name IN ('payload', 'pointer')
        OR subject IN (30, 31) AND name = 'externalIds' OR subject = 0 AND name NOT IN ('eventId', 'feature') THEN NULL
      WHEN subject IN (7, 10, 11) AND name = 'reason' OR subject IN (30, 31) AND name = 'name' THEN '"erased"'
      WHEN subject = 4 AND name IN ('firstHash', 'conflictHash') THEN '"' || repeat('0', 64) || '"'
      WHEN subject = 4 AND name = 'payload' OR subject = 6 AND name = 'usage' THEN erased_body(8::smallint, member)
      WHEN subject IN (10, 11) AND name = 'payload' THEN erased_copy(readable ->> 'sourceSubject', member)
      WHEN subject = 20 AND name = 'samples' THEN erased_body(subject, member)
      ELSE member END;
    IF member IS NOT NULL THEN
      kept := kept || (to_json(name) || ':' || member);
    END IF;
  END LOOP;
  RETURN '{' || replace(replace(array_to_string(kept, ','), '\\u', '\u'), '\\s', '\\') || '}';
END $$;
-- +goose StatementEnd

-- Erases events of an archived tenant whose erasure runs: the next ones behind a number, at most so many. It returns the number that it reached, and how many events it
-- changed. It is the only way by which the service changes the log. What it writes follows from the event alone. Stored hashes that follow from a changed payload
-- go, and the hash in a key becomes the event's id: keys from after the archive have none of a content.
-- The settings let its statements read the rows of a batch, each by its key, whatever the planner knows of their tables.
-- +goose StatementBegin
CREATE FUNCTION erase_events(of_tenant uuid, of_partition smallint, after bigint, up_to bigint, most int, OUT reached bigint, OUT erased bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  requested text := (SELECT 'z/' || e.id || '/requested' FROM erasures e WHERE e.tenant_id = of_tenant AND e.state = 'RUNNING');
  last bigint := least(up_to, (SELECT e.up_to FROM erasures e WHERE e.tenant_id = of_tenant));
  rows int := greatest(1, least(coalesce(most, 1000), 10000));
  archived bigint := (SELECT max(a.position) FROM event_log_rows a WHERE a.partition = of_partition AND a.tenant_id = of_tenant
    AND a.dedupe_key > 'o/' AND a.dedupe_key < 'o0' AND a.dedupe_key LIKE 'o/%/archived' AND a.subject = 80);
  event record;
  changed text;
BEGIN
  IF archived IS NULL OR NOT EXISTS (SELECT FROM tenants t WHERE t.id = of_tenant AND t.status = 'ARCHIVED') OR NOT EXISTS (
    SELECT FROM event_log_rows r WHERE r.partition = of_partition AND r.tenant_id = of_tenant AND r.dedupe_key = requested AND r.subject = 81) THEN
    RAISE EXCEPTION 'the tenant % is not archived, or its erasure does not run', of_tenant USING ERRCODE = 'insufficient_privilege';
  END IF;
  UPDATE withheld_records w SET reason = 'erased' WHERE w.tenant_id = of_tenant AND w.reason <> 'erased'; -- it is the broker's text
  reached := last;
  erased := 0;
  FOR event IN
    SELECT l.position, l.subject, l.body::text AS body FROM event_log_rows l
    WHERE l.partition = of_partition AND l.tenant_id IS NOT DISTINCT FROM of_tenant AND l.position > after AND l.position <= last ORDER BY l.position LIMIT rows
  LOOP
    changed := erased_body(event.subject, event.body);
    IF changed <> event.body THEN
      UPDATE event_log_rows l SET body = changed::json, hash = CASE WHEN l.subject NOT IN (1, 8, 9, 19) THEN l.hash END,
        dedupe_key = CASE WHEN l.subject = 4 THEN regexp_replace(l.dedupe_key, '[^/]*$', l.event_id::text)
          WHEN l.subject = 7 AND l.position < archived THEN regexp_replace(l.dedupe_key, '[0-9a-f]{16}(/-?[0-9]+)$', l.event_id || '\1') ELSE l.dedupe_key END
      WHERE l.partition = of_partition AND l.position = event.position;
      erased := erased + 1;
    END IF;
    rows := rows - 1;
    IF rows = 0 THEN
      reached := event.position;
    END IF;
  END LOOP;
END $$;
-- +goose StatementEnd

-- Drops the answers to requests about a tenant from before its erasure, and the hashes of these requests, among the next so many behind a key. It returns the key that it
-- reached, '' at the end. The keys of the answers stay, so that no request takes effect twice.
-- +goose StatementBegin
CREATE FUNCTION erase_answers(of_tenant uuid, of_partition smallint, after text, most int) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  requested text := (SELECT 'z/' || e.id || '/requested' FROM erasures e WHERE e.tenant_id = of_tenant AND e.state = 'RUNNING');
  reached text;
  rows int := greatest(1, least(coalesce(most, 1000), 10000));
BEGIN
  IF NOT EXISTS (SELECT FROM tenants t WHERE t.id = of_tenant AND t.status = 'ARCHIVED') OR NOT EXISTS (
    SELECT FROM event_log_rows r WHERE r.partition = of_partition AND r.tenant_id = of_tenant AND r.dedupe_key = requested AND r.subject = 81) OR NOT EXISTS (
    SELECT FROM event_log_rows a WHERE a.partition = of_partition AND a.tenant_id = of_tenant
      AND a.dedupe_key > 'o/' AND a.dedupe_key < 'o0' AND a.dedupe_key LIKE 'o/%/archived' AND a.subject = 80) THEN
    RAISE EXCEPTION 'the tenant % is not archived, or its erasure does not run', of_tenant USING ERRCODE = 'insufficient_privilege';
  END IF;
  WITH batch AS MATERIALIZED (
    SELECT a.tenant_id, a.key FROM idempotency_answers a
    WHERE a.tenant_id = '00000000-0000-0000-0000-000000000000' AND a.key > after ORDER BY a.key LIMIT rows),
  changed AS (UPDATE idempotency_answers a SET body = NULL, request_hash = '' FROM batch s, erasures e
    WHERE a.tenant_id = s.tenant_id AND a.key = s.key AND e.tenant_id = of_tenant AND e.state = 'RUNNING' AND a.created_at < e.requested_at AND a.request_hash <> ''
      AND coalesce(strpos(a.body::text, e.id::text), 0) = 0 -- not that to its own request
      AND (strpos(a.body::text, of_tenant::text) > 0
        -- no EXISTS, which may read the keys of all events of the tenant
        OR (SELECT true FROM event_log_rows l WHERE l.partition = of_partition AND l.tenant_id = of_tenant AND l.dedupe_key = 'c/' || a.key LIMIT 1)))
  SELECT CASE WHEN count(*) < rows THEN '' ELSE max(s.key) END INTO reached FROM batch s;
  RETURN reached;
END $$;
-- +goose StatementEnd
