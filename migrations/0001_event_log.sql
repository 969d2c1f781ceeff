-- +goose Up
-- Roles are cluster-wide. Neither owns anything; neither can log in: the service's
-- login is a member of both and SETs ROLE. That it may is granted by infra/postgres/logins.go,
-- at each start: how depends on the version of the server, and on the login.
-- +goose StatementBegin
DO $$
DECLARE r text;
BEGIN
  FOREACH r IN ARRAY ARRAY['meterplex_worker', 'meterplex_tenant'] LOOP
    BEGIN
      IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT', r);
      END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; -- another database of this cluster was faster
    END;
  END LOOP;
END $$;
-- +goose StatementEnd

-- What repeats in every row stands here once.
CREATE TABLE log_origins (
  id         int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  actor_type text NOT NULL,
  actor_id   text NOT NULL,
  service    text NOT NULL,
  instance   text NOT NULL,
  commit     text NOT NULL,
  UNIQUE (actor_type, actor_id, service, instance, commit)
);

-- The immutable event log. The parent carries row level security and is what
-- tenants read. The one child holds the rows: only the worker may touch it, and
-- COPY, which row level security forbids, works there.
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
  payload_hash      bytea,                -- canonical version (1 byte), SHA-256 (32 bytes)
  payload           json        NOT NULL,
  replay            text,                 -- the Meterplex-Replay header, metadata of the envelope
  CONSTRAINT event_log_position PRIMARY KEY (partition, position),
  CONSTRAINT event_log_dedupe UNIQUE (partition, tenant_id, dedupe_key)
) PARTITION BY RANGE (partition);
CREATE TABLE event_log_rows PARTITION OF event_log FOR VALUES FROM (0) TO (32);

-- One row for each log partition; whoever appends holds it until commit. That
-- makes positions dense and gives them the order of commits.
CREATE TABLE log_heads (
  partition       smallint PRIMARY KEY,
  position        bigint   NOT NULL DEFAULT 0,
  epoch           int      NOT NULL DEFAULT 0,
  topic_positions bigint[] NOT NULL,        -- last position of each topic, [1] is topic 1
  recorded_at     timestamptz NOT NULL DEFAULT 'epoch',
  accepted        bigint   NOT NULL DEFAULT 0,
  validated       bigint   NOT NULL DEFAULT 0,
  rejected        bigint   NOT NULL DEFAULT 0,
  parked          bigint   NOT NULL DEFAULT 0
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
INSERT INTO log_heads (partition, topic_positions)
SELECT p, array_fill(0::bigint, ARRAY[15]) FROM generate_series(0, 31) p;

-- Which history a position belongs to. A start that finds another system
-- identifier or timeline raises the epoch at head + 1 before anything is written.
CREATE TABLE log_epochs (
  partition         smallint NOT NULL,
  epoch             int      NOT NULL,
  from_position     bigint   NOT NULL,
  system_identifier bigint   NOT NULL,
  timeline          bigint   NOT NULL,
  raised_at         timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (partition, epoch)
);

ALTER TABLE event_log ENABLE ROW LEVEL SECURITY;
ALTER TABLE event_log FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON event_log FOR SELECT TO meterplex_tenant
  USING (tenant_id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);
CREATE POLICY worker_reads ON event_log FOR SELECT TO meterplex_worker USING (true);
CREATE POLICY worker_appends ON event_log FOR INSERT TO meterplex_worker WITH CHECK (true);

GRANT SELECT, INSERT ON event_log, event_log_rows, log_origins, log_epochs TO meterplex_worker;
GRANT SELECT, UPDATE ON log_heads TO meterplex_worker;
GRANT SELECT ON event_log, log_heads, log_epochs, log_origins TO meterplex_tenant;
