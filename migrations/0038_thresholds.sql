-- +goose Up
-- Stop all instances first. No tenant has a threshold before it, so there is nothing to fill.
INSERT INTO required_migrations VALUES (38, 'they would count usage without raising thresholds');

-- Thresholds of tenants, kept for ever: usage that a projection counts later needs those of its position. A row changes under the lock of the head of the
-- tenant's partition, with its event. Each is a percentage of the limit or an amount.
CREATE TABLE thresholds (
  id         uuid PRIMARY KEY,
  tenant_id  uuid NOT NULL,
  feature    text COLLATE "C" NOT NULL,  -- '': each feature
  percent    bigint NOT NULL CHECK (percent BETWEEN 0 AND 1000),
  amount     bigint NOT NULL CHECK (amount >= 0),
  position   bigint NOT NULL,            -- number of the event that defined it
  removed    bigint,                     -- number of the event that removed it
  created_at timestamptz NOT NULL,
  CHECK ((percent = 0) <> (amount = 0)),
  CHECK (removed > position)
);
CREATE INDEX thresholds_of_tenant ON thresholds (tenant_id, id) WHERE removed IS NULL;
CREATE INDEX thresholds_removed ON thresholds (tenant_id, removed) WHERE removed IS NOT NULL;
ALTER TABLE thresholds ENABLE ROW LEVEL SECURITY;
ALTER TABLE thresholds FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON thresholds TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE ON thresholds TO meterplex_worker;
