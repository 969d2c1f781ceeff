-- +goose Up
-- Older instances go on beside it: it adds a table that they neither read nor write.
--
-- The running totals of a figure: what its rows in usage_aggregates were once every verdict up to a
-- position was folded. The fold adds those of all subscriptions of the figure, at the same
-- position, after each 1,024 or more verdicts, so that a figure as of a position is
-- the last totals before it and a few thousand verdicts. Figures that were folded
-- by older releases have totals from their next verdicts, or from a rebuild.
CREATE TABLE usage_running_totals (
  generation      int    NOT NULL,
  partition       smallint NOT NULL,
  tenant_id       uuid   NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  period_key      text COLLATE "C" NOT NULL,
  position        bigint NOT NULL,
  subscription_id uuid   NOT NULL,
  amount          numeric NOT NULL, -- a bigint sum can overflow
  event_count     bigint NOT NULL,
  last_event_at   timestamptz NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature, period_key, position, subscription_id)
);

ALTER TABLE usage_running_totals ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_running_totals FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON usage_running_totals FOR SELECT TO meterplex_tenant USING (tenant_id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);
CREATE POLICY worker ON usage_running_totals TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, DELETE ON usage_running_totals TO meterplex_worker;
GRANT SELECT ON usage_running_totals TO meterplex_tenant;
