-- +goose Up
-- Which generations a consumer feeds, and which of them readers see.
-- joined: fed in one transaction with all that are joined in the partition, and so
-- at the same position as they. What is not joined yet is a rebuild on its way.
-- serving: readers may be sent there; an event that fails in one that serves is a
-- dead letter, and one that fails anywhere else breaks that generation alone.
ALTER TABLE consumer_checkpoints
  ADD COLUMN joined  boolean NOT NULL DEFAULT true,
  ADD COLUMN serving boolean NOT NULL DEFAULT true;
GRANT DELETE ON consumer_checkpoints TO meterplex_worker;

-- A generation holds what its scope says: one tenant (nil: all), one period ('': all).
ALTER TABLE projection_generations
  ADD COLUMN tenant_id  uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
  ADD COLUMN period_key text COLLATE "C" NOT NULL DEFAULT '',
  ADD COLUMN broken     text,        -- why it is fed no longer
  ADD COLUMN dropped_at timestamptz, -- it is fed no longer, and nobody is shown it
  ADD COLUMN purged     boolean NOT NULL DEFAULT false; -- its rows are gone

-- A pointer is a flip: of all that match a tenant and a period and are not undone,
-- the latest says which generation is live. A promotion adds one row, a rollback
-- marks it undone: what was live at any flip can be asked for as long as it is kept.
ALTER TABLE projection_pointers DROP CONSTRAINT projection_pointers_pkey;
ALTER TABLE projection_pointers
  ADD COLUMN period_key  text COLLATE "C" NOT NULL DEFAULT '',
  ADD COLUMN flip        int NOT NULL DEFAULT 1,
  ADD COLUMN undone_flip int,
  ADD COLUMN flipped_at  timestamptz NOT NULL DEFAULT now(),
  ADD COLUMN live        boolean NOT NULL DEFAULT true, -- neither undone nor wholly covered by a later one
  ADD PRIMARY KEY (projection, flip);
ALTER TABLE projection_pointers ALTER COLUMN flip DROP DEFAULT;
GRANT DELETE ON projection_pointers TO meterplex_worker;
-- +goose StatementBegin
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['projection_pointers', 'projection_generations'] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I FOR SELECT TO meterplex_tenant USING (tenant_id IN (NULLIF(current_setting(''meterplex.tenant_id'', true), '''')::uuid, ''00000000-0000-0000-0000-000000000000''))', t);
    EXECUTE format('CREATE POLICY worker ON %I TO meterplex_worker USING (true) WITH CHECK (true)', t);
  END LOOP;
END $$;
-- +goose StatementEnd

-- The generation that readers of a tenant's period see; as of a flip where one is given.
-- +goose StatementBegin
CREATE FUNCTION live_generation(of_projection text, of_tenant uuid, of_period text DEFAULT '', as_of int DEFAULT NULL) RETURNS int
LANGUAGE sql STABLE SET search_path = public, pg_temp AS $$
  SELECT p.generation FROM projection_pointers p
   WHERE p.projection = of_projection
     AND p.tenant_id IN (of_tenant, '00000000-0000-0000-0000-000000000000') AND p.period_key IN (of_period, '')
     AND CASE WHEN as_of IS NULL THEN p.undone_flip IS NULL
              ELSE p.flip <= as_of AND (p.undone_flip IS NULL OR p.undone_flip > as_of) END
   ORDER BY p.flip DESC LIMIT 1
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION live_generation FROM PUBLIC;
GRANT EXECUTE ON FUNCTION live_generation TO meterplex_worker, meterplex_tenant;

-- A rebuild, with where it stands. Each of its steps is an event in the log, too.
CREATE TABLE projection_rebuilds (
  id           uuid PRIMARY KEY,            -- the id of the event that asked for it
  projection   text NOT NULL,
  consumer     text NOT NULL,               -- that feeds it
  generation   int  NOT NULL,
  fold_version text NOT NULL,
  purpose      text NOT NULL CHECK (purpose IN ('rebuild', 'verify')),
  repair       boolean NOT NULL DEFAULT false, -- of a verify: promote where it differs
  tenant_id    uuid NOT NULL,               -- nil: all
  period_key   text COLLATE "C" NOT NULL,   -- '': all
  reason       text NOT NULL,
  state        text NOT NULL CHECK (state IN ('FOLDING', 'CATCHING_UP', 'READY', 'PROMOTED', 'ROLLED_BACK', 'ABANDONED', 'FAILED')),
  failure      text NOT NULL DEFAULT '',
  workers      int  NOT NULL,
  flip         int,                         -- of its last promotion
  differs      bigint,                      -- of a verify: keys that were not as the log says
  report       json,                        -- of a verify: the first of those keys, with what they said
  created_at   timestamptz NOT NULL,
  ready_at     timestamptz,
  ended_at     timestamptz,                 -- promoted, rolled back, abandoned or failed
  UNIQUE (projection, generation)
);
CREATE INDEX projection_rebuilds_open ON projection_rebuilds (state) WHERE state IN ('FOLDING', 'CATCHING_UP');

-- A unit of a rebuild's work is a log partition; how far it is says the checkpoint
-- of its generation, whose lock is the unit's lease.
CREATE TABLE rebuild_units (
  rebuild_id uuid     NOT NULL REFERENCES projection_rebuilds,
  partition  smallint NOT NULL,
  target     bigint   NOT NULL,            -- where the live one stood when it began
  events     bigint   NOT NULL DEFAULT 0,  -- folded
  worker     text     NOT NULL DEFAULT '',
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (rebuild_id, partition)
) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE ON projection_rebuilds, rebuild_units TO meterplex_worker;

-- A consumer's standing follows the pointers as they are now.
-- +goose StatementBegin
DO $$
DECLARE
  body text := pg_get_functiondef('consumer_standing'::regproc);
BEGIN
  body := replace(body, $q$SELECT p.generation FROM projection_pointers p
            WHERE p.projection = of_projection AND p.tenant_id IN (tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY p.tenant_id DESC LIMIT 1)) -- nil, the default, sorts first$q$,
    $q$SELECT p.generation FROM projection_pointers p
            WHERE p.live AND p.projection = of_projection AND p.period_key = ''
              AND p.tenant_id IN (tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY p.tenant_id DESC LIMIT 1)) -- nil, the default, sorts first$q$);
  IF body NOT LIKE '%p.live AND%' THEN
    RAISE EXCEPTION 'consumer_standing is not the function that this migration knows';
  END IF;
  EXECUTE body;
END $$;
-- +goose StatementEnd
