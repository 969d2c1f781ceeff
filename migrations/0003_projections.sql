-- +goose Up
-- Where each consumer stands, for each generation and partition: everything of
-- its source up to the position has been folded. Changed by compare-and-set in
-- the transaction of the fold.
CREATE TABLE consumer_checkpoints (
  consumer   text     NOT NULL,
  generation int      NOT NULL,
  partition  smallint NOT NULL,
  epoch      int      NOT NULL DEFAULT 0,
  position   bigint   NOT NULL DEFAULT 0,
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, generation, partition)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- A generation is bound to a fold version when it is made; the pointer says which
-- one readers see (tenant nil: all tenants without a row of their own).
CREATE TABLE projection_generations (
  projection   text NOT NULL,
  generation   int  NOT NULL,
  fold_version text NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (projection, generation)
);
CREATE TABLE projection_pointers (
  projection text NOT NULL,
  tenant_id  uuid NOT NULL,
  generation int  NOT NULL,
  PRIMARY KEY (projection, tenant_id)
);
INSERT INTO projection_generations (projection, generation, fold_version) VALUES
  ('usage_aggregates', 1, 'usage_aggregates/v1'),
  ('entitlement_reads', 1, 'entitlement_reads/v1'),
  ('dead_letter_events', 1, 'dead_letter_events/v1');
INSERT INTO projection_pointers
SELECT projection, '00000000-0000-0000-0000-000000000000', 1 FROM projection_generations;
INSERT INTO consumer_checkpoints (consumer, generation, partition)
SELECT c, 1, p
FROM unnest(ARRAY['meterplex-usage-validator', 'meterplex-usage-aggregator', 'meterplex-dead-letter-handler',
                  'meterplex-command-handler', 'meterplex-entitlement-reads']) c, generate_series(0, 31) p;

CREATE TABLE usage_aggregates (
  generation      int      NOT NULL,
  partition       smallint NOT NULL,
  tenant_id       uuid     NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  period_key      text COLLATE "C" NOT NULL,
  subscription_id uuid     NOT NULL,
  amount          numeric  NOT NULL, -- a bigint sum can overflow
  event_count     bigint   NOT NULL,
  applied_count   bigint   NOT NULL, -- verdicts folded, a term of the identity
  period_start    timestamptz,       -- NULL for lifetime
  period_end      timestamptz,
  last_event_at   timestamptz NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature, period_key, subscription_id)
) WITH (fillfactor = 50);

CREATE TABLE entitlement_grants (
  generation      int    NOT NULL,
  tenant_id       uuid   NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  subscription_id uuid   NOT NULL,
  type            text   NOT NULL,
  unit            text   NOT NULL,
  "limit"         bigint,            -- NULL: no limit
  limit_behavior  text   NOT NULL,
  reset_period    text   NOT NULL,
  on_ingest       text   NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature)
);
CREATE TABLE entitlement_usage (
  generation int     NOT NULL,
  tenant_id  uuid    NOT NULL,
  feature    text COLLATE "C" NOT NULL,
  period_key text COLLATE "C" NOT NULL,
  used       numeric NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature, period_key)
) WITH (fillfactor = 50);

CREATE TABLE dead_letter_events (
  generation        int      NOT NULL,
  id                uuid     NOT NULL, -- the id of the event that says it failed first
  partition         smallint NOT NULL,
  tenant_id         uuid     NOT NULL,
  stage             text     NOT NULL,
  status            text     NOT NULL,
  code              text     NOT NULL,
  reason            text     NOT NULL,
  details           json,
  producer_event_id text     NOT NULL,
  feature           text     NOT NULL,
  source_position   bigint   NOT NULL,
  topic             text     NOT NULL,
  kafka_partition   smallint,
  kafka_offset      bigint,
  payload           json,
  retry_count       int      NOT NULL,
  first_failed_at   timestamptz NOT NULL,
  last_failed_at    timestamptz NOT NULL,
  PRIMARY KEY (generation, id)
);
CREATE INDEX dead_letter_events_by_tenant ON dead_letter_events (generation, tenant_id, id);

-- +goose StatementBegin
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['usage_aggregates', 'entitlement_grants', 'entitlement_usage', 'dead_letter_events'] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I FOR SELECT TO meterplex_tenant USING (tenant_id = NULLIF(current_setting(''meterplex.tenant_id'', true), '''')::uuid)', t);
    EXECUTE format('CREATE POLICY worker ON %I TO meterplex_worker USING (true) WITH CHECK (true)', t);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO meterplex_worker', t);
    EXECUTE format('GRANT SELECT ON %I TO meterplex_tenant', t);
  END LOOP;
END $$;
-- +goose StatementEnd
GRANT SELECT, INSERT, UPDATE ON consumer_checkpoints, projection_generations, projection_pointers TO meterplex_worker;
GRANT SELECT ON consumer_checkpoints, projection_generations, projection_pointers TO meterplex_tenant;
