-- +goose Up
-- Stop all instances first. No tenant is offboarded before it, so there is nothing to fill.
INSERT INTO required_migrations VALUES (37, 'they would change the keys, subscriptions and periods of tenants that are being offboarded');

ALTER TABLE tenants DROP CONSTRAINT tenants_status_check;
ALTER TABLE tenants ADD CONSTRAINT tenants_status_check CHECK (status IN ('ACTIVE', 'SUSPENDED', 'ARCHIVED'));

-- The ends of tenants, kept for ever. A row changes under the lock of the head of the tenant's partition, with the event of its step.
CREATE TABLE offboardings (
  id             uuid PRIMARY KEY,
  tenant_id      uuid NOT NULL,
  saga_id        uuid NOT NULL,
  state          text COLLATE "C" NOT NULL CHECK (state IN ('RUNNING', 'CANCELLING', 'CANCELLED', 'ARCHIVED')),
  step           text COLLATE "C" NOT NULL,            -- the last that ended
  reason         text NOT NULL,
  actor          text NOT NULL,
  cancel_reason  text NOT NULL DEFAULT '',
  cancel_actor   text NOT NULL DEFAULT '',
  requested_at   timestamptz NOT NULL,
  suspended_at   timestamptz,
  drained_to     bigint NOT NULL DEFAULT 0,            -- usage recorded up to this number counts before periods are closed
  closed         text[] COLLATE "C" NOT NULL DEFAULT '{}', -- periods that it closed before their end, as key/snapshot
  exports        int NOT NULL DEFAULT 0,
  manifest       text,                                 -- byte for byte
  ended_at       timestamptz,
  CHECK ((state IN ('CANCELLED', 'ARCHIVED')) = (ended_at IS NOT NULL))
);
CREATE UNIQUE INDEX offboardings_open ON offboardings (tenant_id) WHERE state <> 'CANCELLED';
CREATE INDEX offboardings_last ON offboardings (tenant_id, id);
ALTER TABLE offboardings ENABLE ROW LEVEL SECURITY;
ALTER TABLE offboardings FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON offboardings TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE ON offboardings TO meterplex_worker;
