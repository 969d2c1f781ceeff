-- +goose Up
-- Older instances go on beside it: they neither read nor write the new tables, and a feature that they change keeps
-- its keys.
--
-- The metadata keys by which the usage of a feature is grouped, and since when: the keys of a usage event are those
-- of the latest row up to the time at which it was recorded.
ALTER TABLE features ADD COLUMN group_by text[] NOT NULL DEFAULT '{}';
CREATE TABLE feature_groupings (
  feature text COLLATE "C" NOT NULL,
  since   timestamptz NOT NULL,
  keys    text[] NOT NULL,
  PRIMARY KEY (feature, since)
);
GRANT SELECT, INSERT, UPDATE ON feature_groupings TO meterplex_worker;
GRANT SELECT ON feature_groupings TO meterplex_tenant;

-- The usage of each hour (UTC) and group. Days and months are sums of hours.
CREATE TABLE usage_series (
  generation   int         NOT NULL,
  partition    smallint    NOT NULL,
  tenant_id    uuid        NOT NULL,
  feature      text COLLATE "C" NOT NULL,
  hour         timestamptz NOT NULL, -- its start
  group_values text COLLATE "C" NOT NULL, -- a JSON object by key, in the order of the keys; {}: not grouped
  amount       numeric     NOT NULL, -- a bigint sum can overflow
  event_count  bigint      NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature, hour, group_values)
) WITH (fillfactor = 50);

-- The values of a key that have groups of their own, at most 1,000 for each tenant and feature.
CREATE TABLE usage_series_values (
  generation int  NOT NULL,
  tenant_id  uuid NOT NULL,
  feature    text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  value      text COLLATE "C" NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature, key, value)
);

-- +goose StatementBegin
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['usage_series', 'usage_series_values'] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I FOR SELECT TO meterplex_tenant USING (tenant_id = NULLIF(current_setting(''meterplex.tenant_id'', true), '''')::uuid)', t);
    EXECUTE format('CREATE POLICY worker ON %I TO meterplex_worker USING (true) WITH CHECK (true)', t);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO meterplex_worker', t);
    EXECUTE format('GRANT SELECT ON %I TO meterplex_tenant', t);
  END LOOP;
END $$;
-- +goose StatementEnd

-- When the last event up to a position of a partition was recorded; null if there is none. These times
-- never decrease along a partition.
-- +goose StatementBegin
CREATE FUNCTION recorded_time(of_partition smallint, up_to bigint) RETURNS timestamptz
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
  RETURN (SELECT l.recorded_at FROM event_log_rows l WHERE l.partition = of_partition AND l.position <= up_to ORDER BY l.position DESC LIMIT 1);
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION recorded_time FROM PUBLIC;
GRANT EXECUTE ON FUNCTION recorded_time TO meterplex_worker, meterplex_tenant;

-- Row level security is forced on these tables, and their owner has no right to add rows. Readers see no change: the
-- transaction holds their locks up to its end.
ALTER TABLE projection_generations NO FORCE ROW LEVEL SECURITY;
ALTER TABLE projection_pointers NO FORCE ROW LEVEL SECURITY;
INSERT INTO projection_generations (projection, generation, fold_version) VALUES ('usage_series', 1, 'usage_series/v1');
INSERT INTO projection_pointers (projection, tenant_id, generation, flip) VALUES ('usage_series', '00000000-0000-0000-0000-000000000000', 1, 1);
INSERT INTO consumer_checkpoints (consumer, generation, partition)
SELECT 'meterplex-usage-series', 1, p FROM generate_series(0, 31) p;
ALTER TABLE projection_generations FORCE ROW LEVEL SECURITY;
ALTER TABLE projection_pointers FORCE ROW LEVEL SECURITY;
