-- +goose Up
-- Older instances go on beside it: they save a tenant without the new columns, which stay as they are.
--
-- The ids of tenants in other systems, and notes about tenants.
ALTER TABLE tenants
  ADD COLUMN external_ids text[] COLLATE "C" NOT NULL DEFAULT '{}',
  ADD COLUMN metadata     jsonb NOT NULL DEFAULT '{}';

-- The ids of tenants.external_ids, each once over all tenants. Changes lock the table after all heads.
CREATE TABLE tenant_external_ids (
  external_id text COLLATE "C" PRIMARY KEY,
  tenant_id   uuid NOT NULL,
  UNIQUE (tenant_id, external_id)
);
ALTER TABLE tenant_external_ids ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenant_external_ids FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON tenant_external_ids TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON tenant_external_ids TO meterplex_worker;
