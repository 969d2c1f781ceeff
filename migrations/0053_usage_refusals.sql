-- +goose Up
-- Older instances go on beside it: they neither read nor write the new table.
--
-- Usage that ingest refused, by tenant, code and feature: at most 1,000 groups of a tenant, and one of other features for each code.
CREATE TABLE usage_refusals (
  generation int         NOT NULL,
  partition  smallint    NOT NULL,
  tenant_id  uuid        NOT NULL,
  code       text COLLATE "C" NOT NULL,
  feature    text COLLATE "C" NOT NULL, -- '': the events had no valid one; *: other features
  count      bigint      NOT NULL,
  first_at   timestamptz NOT NULL,
  last_at    timestamptz NOT NULL,
  samples    json        NOT NULL,      -- the last ones, at most ten
  PRIMARY KEY (generation, tenant_id, code, feature)
) WITH (fillfactor = 50);

ALTER TABLE usage_refusals ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_refusals FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON usage_refusals FOR SELECT TO meterplex_tenant USING (tenant_id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);
CREATE POLICY worker ON usage_refusals TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON usage_refusals TO meterplex_worker;
GRANT SELECT ON usage_refusals TO meterplex_tenant;

-- Row level security is forced on these tables, and their owner has no right to add rows. Readers see no change: the
-- transaction holds their locks up to its end.
ALTER TABLE projection_generations NO FORCE ROW LEVEL SECURITY;
ALTER TABLE projection_pointers NO FORCE ROW LEVEL SECURITY;
INSERT INTO projection_generations (projection, generation, fold_version) VALUES ('usage_refusals', 1, 'usage_refusals/v1');
INSERT INTO projection_pointers (projection, tenant_id, generation, flip) VALUES ('usage_refusals', '00000000-0000-0000-0000-000000000000', 1, 1);
INSERT INTO consumer_checkpoints (consumer, generation, partition)
SELECT 'meterplex-usage-refusals', 1, p FROM generate_series(0, 31) p;
ALTER TABLE projection_generations FORCE ROW LEVEL SECURITY;
ALTER TABLE projection_pointers FORCE ROW LEVEL SECURITY;
