-- +goose Up
-- The log, its numbers and its readers. Who may do what with the tables and functions: 0009_access.sql.

-- Roles are cluster-wide. They own nothing and cannot log in: the service's login is a member of the first two and SETs ROLE. That it may is granted by
-- infra/postgres/logins.go, at each start: how depends on the version of the server, and on the login. Reporting tools read as the third, or as its members:
-- without the right to create roles, a DBA creates it (docs/how-to/report-by-sql.md).
-- +goose StatementBegin
DO $$
DECLARE r text;
BEGIN
  FOREACH r IN ARRAY ARRAY['meterplex_worker', 'meterplex_tenant', 'meterplex_reporting'] LOOP
    BEGIN
      IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT', r);
      END IF;
    EXCEPTION
      WHEN duplicate_object OR unique_violation THEN NULL; -- another database of this cluster was faster
      WHEN insufficient_privilege THEN
        IF r <> 'meterplex_reporting' THEN
          RAISE;
        END IF;
        RAISE NOTICE 'the role meterplex_reporting is missing: reporting tools need it';
    END;
  END LOOP;
END $$;
-- +goose StatementEnd

-- The migrations that older binaries cannot work beside. A binary works on a database only if it knows all of them (docs/how-to/upgrade.md). A
-- migration after which older ones would be wrong, or make others wrong, adds a row for itself; one that only adds what they do not notice adds none.
CREATE TABLE required_migrations (
  migration bigint PRIMARY KEY,
  because   text NOT NULL -- what older binaries would do wrong
);

-- Every vocabulary that an event was recorded under: subjects, topics, schemas and retention classes, as a document whose SHA-256 is its name. A
-- binary that does not embed a vocabulary reads it here. Rows are only added.
CREATE TABLE log_vocabularies (
  hash     text COLLATE "C" PRIMARY KEY,
  document text NOT NULL,
  CHECK (hash = encode(sha256(convert_to(document, 'UTF8')), 'hex'))
);

-- What repeats in many rows of the log. Origins are shared by all tenants.
CREATE TABLE log_origins (
  id         int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  actor_type text NOT NULL,
  actor_id   text NOT NULL,
  service    text NOT NULL,
  instance   text NOT NULL,
  commit     text NOT NULL,
  vocabulary text COLLATE "C" NOT NULL REFERENCES log_vocabularies (hash),
  residency  text COLLATE "C" NOT NULL DEFAULT 'unspecified' CHECK (residency ~ '^[a-z][a-z0-9-]{0,31}$'),
  via        text COLLATE "C" NOT NULL DEFAULT '' CHECK (via ~ '^([a-z][a-z0-9-]{0,31})?$'), -- '': the API; console
  CONSTRAINT log_origins_values UNIQUE (actor_type, actor_id, service, instance, commit, vocabulary, residency, via)
);

-- The immutable event log. The parent carries row level security and is what tenants read. The one child holds the rows: only the worker may touch
-- it, and COPY, which row level security forbids, works there.
CREATE TABLE event_log (
  position          bigint      NOT NULL CHECK (position > 0),
  previous_position bigint      NOT NULL, -- the one before it on the same topic, 0 for none
  recorded_at       timestamptz NOT NULL,
  occurred_at       timestamptz NOT NULL,
  event_id          uuid        NOT NULL,
  tenant_id         uuid        NOT NULL, -- nil: the platform
  correlation_id    uuid,
  causation_id      uuid,
  epoch             int         NOT NULL,
  origin            int         NOT NULL,
  partition         smallint    NOT NULL CHECK (partition BETWEEN 0 AND 31),
  topic             smallint    NOT NULL,
  subject           smallint    NOT NULL,
  dedupe_key        text COLLATE "C" NOT NULL,
  hash              bytea,                -- canonical version (1 byte), SHA-256 (32 bytes)
  body              json        NOT NULL,
  replay            text,                 -- the Meterplex-Replay header, metadata of the envelope
  CONSTRAINT event_log_position PRIMARY KEY (partition, position),
  CONSTRAINT event_log_dedupe UNIQUE (partition, tenant_id, dedupe_key)
) PARTITION BY RANGE (partition);
CREATE TABLE event_log_rows PARTITION OF event_log FOR VALUES FROM (0) TO (32);
COMMENT ON COLUMN event_log.body IS 'the payload, in short; whole: l.payload';
COMMENT ON COLUMN event_log.hash IS 'NULL of recorded usage: that of the payload, canonical version 1; always: l.payload_hash';

-- The planner knows nothing of single partitions: it would take one that is not among the values of its statistics for empty, e.g. that of the newest tenant, and
-- read it whole by the primary key for each look-up of a dedupe key. Without statistics it takes each for a 200th of the table.
ALTER TABLE event_log ALTER partition SET STATISTICS 0;

-- New rows are frozen while their pages are still in memory, in steps that do not grow with the table: a row never changes, so there is nothing to
-- wait for. Otherwise the vacuum against wraparound writes the whole table once more, years later (docs/decisions/0009).
ALTER TABLE event_log_rows SET (
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
  autovacuum_freeze_min_age = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000,
  -- Rows that an erasure replaced are vacuumed soon: the log has no other ones.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- One row for each log partition; whoever appends holds it until commit. That makes positions dense and gives them the order of commits.
CREATE TABLE log_heads (
  partition         smallint PRIMARY KEY,
  position          bigint   NOT NULL DEFAULT 0,
  epoch             int      NOT NULL DEFAULT 0,
  topic_positions   bigint[] NOT NULL,        -- last position of each topic, [1] is topic 1
  recorded_at       timestamptz NOT NULL DEFAULT 'epoch',
  accepted          bigint   NOT NULL DEFAULT 0,
  validated         bigint   NOT NULL DEFAULT 0,
  rejected          bigint   NOT NULL DEFAULT 0,
  parked            bigint   NOT NULL DEFAULT 0,
  system_identifier bigint,                   -- the life of the server that issued the last position
  timeline          bigint,
  started_at        timestamptz
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
INSERT INTO log_heads (partition, topic_positions)
SELECT p, array_fill(0::bigint, ARRAY[15]) FROM generate_series(0, 31) p;

-- An epoch is a life of the database server: from one start of it to the next. A server that was promoted or set back issues positions a second time,
-- so the transaction that locks a head compares the head's life with the server's, and raises the epoch at head + 1 before anything is written
-- (infra/postgres/eventlog/epoch.go). NULL differs from every life.
CREATE TABLE log_epochs (
  partition         smallint NOT NULL,
  epoch             int      NOT NULL,
  from_position     bigint   NOT NULL,
  system_identifier bigint   NOT NULL,
  timeline          bigint   NOT NULL,
  raised_at         timestamptz NOT NULL DEFAULT now(),
  started_at        timestamptz,
  reason            text NOT NULL DEFAULT 'first' CHECK (reason IN ('first', 'restarted', 'promoted', 'restored', 'set_back')),
  PRIMARY KEY (partition, epoch)
);

-- The log's name in the headers of its records. Two databases may share a Kafka by mistake; neither folds the other's records.
CREATE TABLE log_identity (
  log_id   uuid    NOT NULL DEFAULT gen_random_uuid(),
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
INSERT INTO log_identity DEFAULT VALUES;

-- The server's life now. The first eight digits of a WAL file's name are the timeline.
-- Written to be inlined: VOLATILE because pg_current_wal_lsn is.
-- +goose StatementBegin
CREATE FUNCTION server_life(OUT system_identifier bigint, OUT timeline bigint, OUT started_at timestamptz)
LANGUAGE sql VOLATILE AS $$
  SELECT system_identifier, ('x' || lpad(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), 16, '0'))::bit(64)::bigint, pg_postmaster_start_time()
  FROM pg_control_system()
$$;
-- +goose StatementEnd

-- Whether a head's life is the server's. It leaves out the system identifier, which is read from a file and costs six times the rest: no two servers
-- start in the same microsecond.
-- +goose StatementBegin
CREATE FUNCTION is_server_life(timeline bigint, started_at timestamptz) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
  SELECT started_at IS NOT DISTINCT FROM pg_postmaster_start_time()
     AND timeline IS NOT DISTINCT FROM ('x' || lpad(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), 16, '0'))::bit(64)::bigint
$$;
-- +goose StatementEnd

-- A row of the log keeps of its event's payload what its other columns do not say: events/codec/stored.go writes these bodies, and reads them for the
-- relay and the folds. payload and payload_hash of a row are functions, and written as columns: l.payload.
-- In short is an array; a payload is an object. Members stand in it as they stood in the payload, byte for byte: of recorded usage
-- [amount, feature, metadata, source], of a verdict [amount, feature, eventId, subscription, featureType, periodKey]. A verdict with a grant has it
-- before the period; one on admitted, late or corrected usage has there a grant, 0 for none, a count, and an object of the payload's other members.
-- Written to be inlined: no SET, no STRICT.
-- +goose StatementBegin
CREATE FUNCTION whole_payload(subject smallint, key text, occurred_at timestamptz, body json) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN json_typeof(body) <> 'array' THEN body
    WHEN subject = 1 AND json_array_length(body) BETWEEN 2 AND 4 THEN (
      '{"amount":' || (body -> 0)::text || ',"eventId":"' || substr(key, 3) || '","feature":' || (body -> 1)::text
      || CASE WHEN json_typeof(body -> 2) <> 'null' THEN ',"metadata":' || (body -> 2)::text ELSE '' END
      || coalesce(',"source":' || (body -> 3)::text, '')
      || ',"timestamp":"' || rtrim(rtrim(to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.')
      || 'Z","type":"usage"}')::json
    WHEN subject = 2 AND json_array_length(body) IN (6, 7, 9) THEN (
      '{"rawPosition":' || substr(key, 3) || ',"eventId":' || (body -> 2)::text || ',"feature":' || (body -> 1)::text
      || ',"amount":' || (body -> 0)::text || ',"count":' || CASE json_array_length(body) WHEN 9 THEN (body -> 6)::text ELSE '1' END
      || ',"timestamp":"' || rtrim(rtrim(to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.')
      || 'Z","validatedSubscriptionId":' || (body -> 3)::text || ',"featureType":' || (body -> 4)::text
      || ',"periodKey":' || (body -> -1)::text
      || CASE WHEN json_array_length(body) > 6 AND (body -> 5)::text <> '0' THEN ',"grant":' || (body -> 5)::text ELSE '' END
      || CASE json_array_length(body) WHEN 9 THEN ',' || substr((body -> 7)::text, 2) ELSE '}' END)::json
    ELSE body
  END
$$;
-- +goose StatementEnd

CREATE FUNCTION payload(l event_log_rows) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
  AS 'SELECT whole_payload(l.subject, l.dedupe_key, l.occurred_at, l.body)';
CREATE FUNCTION payload(l event_log) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
  AS 'SELECT whole_payload(l.subject, l.dedupe_key, l.occurred_at, l.body)';
CREATE FUNCTION payload_hash(l event_log_rows) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS
  $$SELECT coalesce(l.hash, CASE WHEN l.subject = 1 THEN '\x01'::bytea || sha256(convert_to(l.payload::text, 'UTF8')) END)$$;
CREATE FUNCTION payload_hash(l event_log) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS
  $$SELECT coalesce(l.hash, CASE WHEN l.subject = 1 THEN '\x01'::bytea || sha256(convert_to(l.payload::text, 'UTF8')) END)$$;

-- Indexes of rare subjects: rows of other subjects do not pay for them. No expression may fail for any body: an append fails with it, for all events in
-- its group. The server cannot read \u0000 nor half of a surrogate pair as text. The service stores neither; such a body has NULL. An escape begins
-- behind an even number of backslashes.

-- The rejections of a tenant in the order of their events, with which the list of usage of a rare status begins.
CREATE INDEX event_log_rejections ON event_log_rows (tenant_id, (split_part(dedupe_key, '/', 2)::bigint))
  WHERE subject = 3 AND dedupe_key ~ '^x/[0-9]{1,18}/';

-- The verdicts of a figure in the order of the log. In short a verdict's feature is its first text and its period key the last; both are found in the
-- text, which costs a third of what reading it as JSON does. A hash of tenant, feature and period takes 8 bytes instead of some 40; hashes are equal in
-- all versions of the server, since tables may be partitioned by them.
CREATE INDEX event_log_verdicts ON event_log_rows (
    uuid_hash_extended(tenant_id, hashtextextended(CASE WHEN body::text LIKE '[%' THEN split_part(body::text, '"', 2) WHEN body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(body ->> 'feature', body #>> '{validated,feature}') END COLLATE "C",
      hashtextextended(CASE WHEN body::text LIKE '[%' THEN split_part(body::text, '"', -2) WHEN body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(body ->> 'periodKey', body #>> '{validated,periodKey}') END COLLATE "C", 0))), position)
  WHERE subject IN (2, 12);
CREATE INDEX event_log_failures ON event_log_rows (tenant_id, (CASE WHEN body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE body ->> 'sourcePosition' END)) WHERE subject IN (10, 11);

-- The events of a producer's event and of a dead letter, but for recorded usage and its verdict, which keys find.
CREATE INDEX event_log_fates ON event_log_rows (tenant_id, (CASE WHEN body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL
    ELSE coalesce(body ->> 'eventId', body #>> '{usage,eventId}', body #>> '{validated,eventId}',
      body #>> '{payload,eventId}', body #>> '{payload,usage,eventId}', body #>> '{payload,validated,eventId}') END))
  WHERE subject IN (3, 4, 6, 10, 11, 12);
CREATE INDEX event_log_letters ON event_log_rows (tenant_id, (CASE WHEN body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE body ->> 'deadLetterId' END)) WHERE subject IN (13, 14, 15, 16);

-- The functions below read a stretch of a partition, which holds the events of many tenants, by its primary key or by one of the indexes above. The role
-- of tenants sees no row of another's, so that it cannot find the last verdict or the rank on a topic by itself; and the planner, where it takes a tenant
-- for small, would read all of the tenant's events instead of the stretch. They return positions and counts, never contents. They read the
-- rows under the log, since the log itself shows its owner nothing.
--
-- IS NOT DISTINCT FROM compares as = does, but keeps the planner off the index of keys: only the primary key is left, whose plan is right for every tenant
-- and so may be kept.

-- The tenant that a function may answer about: a tenant's role is answered about itself alone.
-- +goose StatementBegin
CREATE FUNCTION asking(of_tenant uuid) RETURNS uuid
LANGUAGE sql STABLE SET search_path = public, pg_temp AS $$
  SELECT CASE WHEN current_setting('role') = 'meterplex_tenant'
              THEN NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid ELSE of_tenant END
$$;
-- +goose StatementEnd

-- The greatest position recorded before a moment, or at it where inclusive; 0 for none. Times of recording never decrease within a partition. A position
-- that is gone from the table is older than any that is there.
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

-- When the last event up to a position of a partition was recorded; null if there is none.
-- +goose StatementBegin
CREATE FUNCTION recorded_time(of_partition smallint, up_to bigint) RETURNS timestamptz
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
  RETURN (SELECT l.recorded_at FROM event_log_rows l WHERE l.partition = of_partition AND l.position <= up_to ORDER BY l.position DESC LIMIT 1);
END $$;
-- +goose StatementEnd

-- The residencies under which events were recorded: one row for each place, in the order of the lists. NULL if there is no event, or it is another tenant's.
-- +goose StatementBegin
CREATE FUNCTION recorded_residencies(of_partitions smallint[], of_positions bigint[])
RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  all_tenants boolean := current_setting('role') <> 'meterplex_tenant';
  tenant      uuid    := asking(NULL);
BEGIN
  RETURN QUERY
  SELECT (SELECT o.residency FROM event_log_rows l JOIN log_origins o ON o.id = l.origin
           WHERE l.partition = u.partition AND l.position = u.number AND (all_tenants OR l.tenant_id = tenant))
    FROM unnest(of_partitions, of_positions) WITH ORDINALITY AS u (partition, number, n)
   ORDER BY u.n;
END $$;
-- +goose StatementEnd

-- Whether an event belongs to a stream, by what it says. Which subjects can belong to a kind of stream at all is for the caller to say. Of usage, what
-- happens to dead letters names the dead letter only: those of the event are given.
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

-- The positions of a stretch (after, up_to] that are asked for. Tenant NULL is all of them, and nobody's where a tenant asks.
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

-- Where an event of an id stands, if it was recorded between two moments, among the first positions of a span from the earlier one. No row where it does not.
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

-- The positions of a stretch (after, up_to] whose events the given ones caused, or events that those caused: a cause stands before its effects.
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

-- The positions of a tenant's recorded usage below a position, newest first, and the position below which the next walk continues (1 at the beginning of
-- the log). Recorded usage is every event of topic 1 except retries (subject 6).
-- It follows the chain that links the events of a topic by their previous positions, so that it skips runs of verdicts, however long, such as those after
-- an import. Where the topic's events lie close together, it reads them by stretches of the primary key. It ends after at_most positions, or once it has
-- read rows_at_most rows.
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

-- The recorded positions of a tenant's rejections below a position, the newest first, as often as each was rejected. The condition is that of the index
-- event_log_rejections.
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

-- The positions of the verdicts of a figure in (after, up_to], in the order of the log. The condition is that of the index event_log_verdicts, whose first
-- column is a hash of the figure: what the verdicts say decides. IS NOT DISTINCT FROM keeps the planner off the other indexes.
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
     AND uuid_hash_extended(l.tenant_id, hashtextextended(CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', 2) WHEN l.body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(l.body ->> 'feature', l.body #>> '{validated,feature}') END COLLATE "C",
           hashtextextended(CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', -2) WHEN l.body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(l.body ->> 'periodKey', l.body #>> '{validated,periodKey}') END COLLATE "C", 0))) = figure
     AND l.position > after AND l.position <= up_to
     AND l.partition IS NOT DISTINCT FROM of_partition AND l.tenant_id IS NOT DISTINCT FROM tenant
   ORDER BY l.position LIMIT at_most;
END $$;
-- +goose StatementEnd

-- Which of a tenant's verdicts failed to fold into the aggregates, or were not carried by the pipe, and why. The condition is that of the index
-- event_log_failures.
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
    JOIN event_log_rows l ON l.subject IN (10, 11) AND l.tenant_id = tenant AND CASE WHEN l.body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])' THEN NULL ELSE l.body ->> 'sourcePosition' END = given.number::text
   WHERE l.subject = 10 OR EXISTS (SELECT FROM log_origins o WHERE o.id = l.origin AND o.actor_id = 'meterplex-usage-aggregator')
   ORDER BY l.position;
END $$;
-- +goose StatementEnd

-- The positions in (after, up_to] of the events of a producer's event: the recorded one and its verdict, by their keys; what became of it, by the conditions
-- of the indexes event_log_fates and event_log_letters, with the dead letters of the event. LIMIT keeps the bounds of positions
-- from the look-ups of keys, which they would turn into reads of a stretch of the primary key.
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
    (SELECT l.position, l.subject, l.correlation_id FROM event_log_rows l
      WHERE l.partition = of_partition AND l.tenant_id = tenant AND l.dedupe_key = 'u/' || of_name LIMIT 1)
    UNION
    (SELECT l.position, l.subject, l.correlation_id FROM event_log_rows l
      WHERE l.partition = of_partition AND l.tenant_id = tenant AND l.dedupe_key = 'v/' || of_recorded LIMIT 1)
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

-- The inbox of what does not come from the log: messages of usage.commands of which something was refused, each claimed by the refusal's own row. What was
-- accepted is claimed by its event's key.
CREATE VIEW inbox AS
SELECT 'meterplex-usage-commands' AS consumer, substr(dedupe_key, 3) AS event_id, tenant_id, partition, position, recorded_at
FROM event_log_rows WHERE dedupe_key >= 'i/' AND dedupe_key < 'i0';

-- The instances of the service, each with the time at which it last reported. An instance reports every few seconds, and writes its end if it is stopped.
-- seen_at is in no index, so that a report changes the row in place.
CREATE TABLE instances (
  id         text COLLATE "C" PRIMARY KEY,
  version    text NOT NULL,
  roles      text[] NOT NULL,
  started_at timestamptz NOT NULL,
  seen_at    timestamptz NOT NULL,
  ended_at   timestamptz
) WITH (fillfactor = 50);
