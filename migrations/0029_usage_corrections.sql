-- +goose Up
-- Stop all instances first. No correction is older than it, so there is nothing to fill.
INSERT INTO required_migrations VALUES (29, 'they do not know corrections, so that they would leave them without a verdict');

-- The changes of usage by corrections and retractions, in the order in which they were applied. The log writes a row when it writes
-- the row of the verdict on the correction, under the lock of the head of the tenant's partition, and at no other time. The
-- validator reads the last one of a target, and the log reads whether a target is retracted.
CREATE TABLE usage_corrections (
  tenant_id uuid NOT NULL,
  target    bigint NOT NULL,            -- number of the recorded usage
  n         int NOT NULL CHECK (n > 0), -- 1 for the first correction of the target
  cause     bigint NOT NULL,            -- number of the recorded correction or retraction
  position  bigint NOT NULL,            -- number of the verdict on it
  kind      text COLLATE "C" NOT NULL CHECK (kind IN ('correction', 'retraction')),
  before    bigint NOT NULL,
  after     bigint NOT NULL CHECK (after >= 0),
  PRIMARY KEY (tenant_id, target, n)
);
ALTER TABLE usage_corrections ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_corrections FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON usage_corrections FOR SELECT TO meterplex_tenant
  USING (tenant_id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);
CREATE POLICY worker ON usage_corrections TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT ON usage_corrections TO meterplex_worker;
GRANT SELECT ON usage_corrections TO meterplex_tenant;
