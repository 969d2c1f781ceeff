-- +goose Up
-- Older instances go on beside it: they know no sagas, and none is theirs.

-- Processes of several steps, such as the close of a period: the step of each, and when it runs next. No tenant reads it. next_at and the
-- lease are times of the database's clock. An ended one is kept: its key is used once.
CREATE TABLE sagas (
  id          uuid PRIMARY KEY,
  kind        text COLLATE "C" NOT NULL CHECK (kind ~ '^[a-z][a-z0-9_]{0,39}$'),
  tenant_id   uuid NOT NULL,                       -- nil: of the platform
  key         text COLLATE "C" NOT NULL,
  step        text COLLATE "C" NOT NULL CHECK (step ~ '^[a-z][a-z0-9_]{0,39}$'),
  state       text COLLATE "C" NOT NULL CHECK (state IN ('RUNNING', 'PARTIAL', 'DRIFT', 'COMPLETED', 'COMPENSATED', 'FAILED')),
  attempts    int NOT NULL DEFAULT 0,              -- failures of the step since it last succeeded
  next_at     timestamptz NOT NULL,                -- under a lease: its end
  lease       uuid,                                -- of the instance that runs the step; a new one each time
  deadline_at timestamptz,
  missing     text[] NOT NULL DEFAULT '{}',
  despite     text[] NOT NULL DEFAULT '{}',
  last_error  text NOT NULL DEFAULT '',
  retries     int NOT NULL DEFAULT 0,              -- by operators
  last_reason text NOT NULL DEFAULT '',            -- of the last of them
  last_actor  text NOT NULL DEFAULT '',
  outcome     text COLLATE "C" CHECK (outcome IN ('success', 'compensated', 'partial')),
  created_at  timestamptz NOT NULL,
  ended_at    timestamptz,
  UNIQUE (kind, tenant_id, key),
  CHECK ((state IN ('COMPLETED', 'COMPENSATED', 'FAILED')) = (ended_at IS NOT NULL)),
  CHECK ((ended_at IS NULL) = (outcome IS NULL)),
  CHECK (ended_at IS NULL OR lease IS NULL)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX sagas_open ON sagas (next_at) WHERE ended_at IS NULL;
CREATE INDEX sagas_of_tenant ON sagas (tenant_id, id);
ALTER TABLE sagas ENABLE ROW LEVEL SECURITY;
ALTER TABLE sagas FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON sagas TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE ON sagas TO meterplex_worker;
