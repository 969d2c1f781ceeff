-- +goose Up
-- Older instances go on beside it: they erase nothing, and leave erasures to newer ones.

ALTER TABLE tenants ADD COLUMN erased_at timestamptz; -- NULL: the personal data is there

-- Erasures of the personal data of archived tenants, kept for ever. A row changes with the batch that it describes.
CREATE TABLE erasures (
  id           uuid PRIMARY KEY,
  tenant_id    uuid NOT NULL UNIQUE,
  saga_id      uuid NOT NULL,
  state        text COLLATE "C" NOT NULL CHECK (state IN ('RUNNING', 'ERASED')),
  reason       text NOT NULL,
  actor        text NOT NULL,
  requested_at timestamptz NOT NULL,
  key          bytea,                      -- makes the pseudonyms; random, and gone with the end
  cursor       bigint NOT NULL DEFAULT 0,  -- the log is rewritten up to this number
  place        text NOT NULL DEFAULT '',   -- the read models are erased up to this place
  rewritten    bigint NOT NULL DEFAULT 0,
  ended_at     timestamptz,
  CHECK ((state = 'RUNNING') = (key IS NOT NULL)),
  CHECK ((state = 'RUNNING') = (ended_at IS NULL))
);
ALTER TABLE erasures ENABLE ROW LEVEL SECURITY;
ALTER TABLE erasures FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON erasures TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE ON erasures TO meterplex_worker;

-- Row level security is forced on these tables, also for their owner, as whom the functions below run.
-- +goose StatementBegin
DO $$ BEGIN
  EXECUTE format('CREATE POLICY owner_reads ON erasures FOR SELECT TO %I USING (true)', current_user);
  EXECUTE format('CREATE POLICY owner_reads_archived ON tenants FOR SELECT TO %I USING (status = ''ARCHIVED'')', current_user);
END $$;
-- +goose StatementEnd

-- The members of a body that an erasure must not change: all but those with personal data or a hash of it. NULL if the server cannot read the body.
-- +goose StatementBegin
CREATE FUNCTION kept_members(subject smallint, body text) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $$
  SELECT CASE
    WHEN body ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL
    WHEN jsonb_typeof(body::jsonb) = 'array' THEN body::jsonb - 2
    ELSE (body::jsonb - CASE subject
        WHEN 7 THEN ARRAY['payload', 'reason'] WHEN 18 THEN ARRAY['key', 'value'] WHEN 20 THEN ARRAY['samples']
        WHEN 30 THEN ARRAY['name', 'externalIds', 'metadata'] WHEN 31 THEN ARRAY['name', 'externalIds', 'metadata']
        WHEN 4 THEN ARRAY['firstHash', 'conflictHash'] ELSE ARRAY['metadata'] END)
      #- '{usage,metadata}'
      || CASE WHEN subject IN (4, 10, 11) AND jsonb_typeof(body::jsonb -> 'payload') = 'object' THEN jsonb_build_object('payload', (body::jsonb -> 'payload')
        - ARRAY['metadata', 'usage', 'payload', 'reason', 'key', 'value', 'samples', 'name', 'externalIds', 'firstHash', 'conflictHash']) ELSE '{}' END
    END
$$;
-- +goose StatementEnd

-- Replaces events of an archived tenant whose erasure runs by the same events without personal data, and returns their number. It is the only way by
-- which the service changes the log, and it can change no figure: all other members stay, and so does a dedupe key but for a hash of the content.
-- +goose StatementBegin
CREATE FUNCTION erase_events(of_tenant uuid, of_partition smallint, of_positions bigint[], keys text[], hashes bytea[], bodies text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
  erased bigint;
  hash_in_key CONSTANT text := '/([0-9a-f]{16}|[0-9a-f]{66})((/-?[0-9]+)?)$';
BEGIN
  IF NOT EXISTS (SELECT FROM tenants t JOIN erasures e ON e.tenant_id = t.id WHERE t.id = of_tenant AND t.status = 'ARCHIVED' AND e.state = 'RUNNING') THEN
    RAISE EXCEPTION 'the tenant % is not archived, or its erasure does not run', of_tenant USING ERRCODE = 'insufficient_privilege';
  END IF;
  IF EXISTS (
    SELECT FROM unnest(of_positions, keys, hashes, bodies) AS n (position, key, hash, body)
    LEFT JOIN event_log_rows l ON l.partition = of_partition AND l.position = n.position AND l.tenant_id = of_tenant
     AND l.subject IN (1, 4, 6, 7, 8, 9, 10, 11, 18, 19, 20, 30, 31)
    WHERE l.position IS NULL
       OR kept_members(l.subject, l.body::text) <> kept_members(l.subject, n.body)
       OR kept_members(l.subject, n.body) IS NULL
       OR kept_members(l.subject, l.body::text) IS NULL AND l.subject NOT IN (7, 18, 20)
       OR n.key <> l.dedupe_key AND (l.subject NOT IN (4, 7, 18) OR regexp_replace(n.key, hash_in_key, '\2') <> regexp_replace(l.dedupe_key, hash_in_key, '\2'))
       OR l.subject <> 1 AND (n.hash IS NULL) <> (l.hash IS NULL) OR l.subject = 1 AND n.hash IS NOT NULL) THEN
    RAISE EXCEPTION 'an erasure may change personal data only' USING ERRCODE = 'insufficient_privilege';
  END IF;
  UPDATE event_log_rows l SET dedupe_key = n.key, hash = n.hash, body = n.body::json
    FROM unnest(of_positions, keys, hashes, bodies) AS n (position, key, hash, body)
   WHERE l.partition = of_partition AND l.position = n.position AND l.tenant_id = of_tenant;
  GET DIAGNOSTICS erased = ROW_COUNT;
  RETURN erased;
END $$;
-- +goose StatementEnd

-- Drops the answers to requests about a tenant from before its erasure, and the hashes of these requests. Their keys stay, so that none takes effect twice.
-- +goose StatementBegin
CREATE FUNCTION erase_answers(of_tenant uuid, of_partition smallint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE erased bigint;
BEGIN
  WITH changed AS (UPDATE idempotency_answers a SET body = NULL, request_hash = '' FROM erasures e
   WHERE e.tenant_id = of_tenant AND e.state = 'RUNNING' AND a.created_at < e.requested_at AND a.request_hash <> ''
     AND coalesce(strpos(a.body::text, e.id::text), 0) = 0 -- not that to its own request
     AND (a.key IN (SELECT substr(l.dedupe_key, 3) FROM event_log_rows l
                     WHERE l.partition = of_partition AND l.tenant_id = of_tenant AND l.dedupe_key >= 'c/' AND l.dedupe_key < 'c0')
       OR strpos(a.body::text, of_tenant::text) > 0) RETURNING 1)
  SELECT count(*) INTO erased FROM changed;
  RETURN erased;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION kept_members, erase_events, erase_answers FROM PUBLIC;
GRANT EXECUTE ON FUNCTION erase_events, erase_answers TO meterplex_worker;

-- Rows that an erasure replaced are vacuumed soon: the log is large, and has no other ones.
SET LOCAL lock_timeout = '2s';
ALTER TABLE event_log_rows SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
