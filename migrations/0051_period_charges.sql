-- +goose Up
-- Stop all instances first. A close freezes the charges with the figures.
INSERT INTO required_migrations VALUES (51, 'they would close periods without freezing their charges');

ALTER TABLE period_snapshots ADD COLUMN charges_hash text COLLATE "C"; -- NULL: closed by an earlier release

-- Frozen charges, kept for ever: insert only. A line without a price has no charge.
CREATE TABLE period_charges (
  tenant_id       uuid NOT NULL,
  period_key      text COLLATE "C" NOT NULL,
  snapshot        int NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  subscription_id uuid NOT NULL,
  grant_number    bigint NOT NULL,        -- position of the change of the subscription; -1: before the first
  status          text COLLATE "C" NOT NULL CHECK (status IN ('BEFORE', 'ACTIVE', 'TRIALING')),
  starts          timestamptz,
  ends            timestamptz,
  amount          numeric NOT NULL,
  event_count     bigint NOT NULL,
  price           text COLLATE "C",
  price_version   bigint,
  currency        text COLLATE "C",
  micro_units     numeric,
  PRIMARY KEY (tenant_id, period_key, snapshot, feature, subscription_id, grant_number)
);
ALTER TABLE period_charges ENABLE ROW LEVEL SECURITY;
ALTER TABLE period_charges FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON period_charges FOR SELECT TO meterplex_tenant USING (tenant_id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);
CREATE POLICY worker ON period_charges TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT ON period_charges TO meterplex_worker;
GRANT SELECT ON period_charges TO meterplex_tenant;
