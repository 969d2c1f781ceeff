-- +goose Up
-- Stop all instances first. No period is closed before it, so there is nothing to fill.
INSERT INTO required_migrations VALUES (31, 'they do not know closed periods, so that late usage would change figures that are frozen');

-- Tenant policy: the present one, and the changes that verdicts are decided by.
ALTER TABLE tenants ADD COLUMN late_usage text COLLATE "C" NOT NULL DEFAULT 'REJECT' CHECK (late_usage IN ('REJECT', 'ADJUST'));
ALTER TABLE tenants ADD COLUMN close_after_hours int CHECK (close_after_hours BETWEEN 1 AND 8784);
CREATE TABLE tenant_policies (
  tenant_id         uuid NOT NULL,
  from_position     bigint NOT NULL,      -- number of the event that changed it
  late_usage        text COLLATE "C" NOT NULL CHECK (late_usage IN ('REJECT', 'ADJUST')),
  close_after_hours int,                  -- NULL: periods are closed by request only
  PRIMARY KEY (tenant_id, from_position)
);

-- Requests to close periods, their ends, and reopenings, each at the number of its event: insert only.
CREATE TABLE period_changes (
  tenant_id  uuid NOT NULL,
  position   bigint NOT NULL,
  period_key text COLLATE "C" NOT NULL,
  snapshot   int NOT NULL CHECK (snapshot > 0),
  change     text COLLATE "C" NOT NULL CHECK (change IN ('close_requested', 'closed', 'reopened')),
  changed_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, position)
);
CREATE UNIQUE INDEX period_changes_once ON period_changes (tenant_id, period_key, snapshot, change);

-- Frozen figures, kept for ever: insert only.
CREATE TABLE period_snapshots (
  tenant_id       uuid NOT NULL,
  period_key      text COLLATE "C" NOT NULL,
  snapshot        int NOT NULL,
  cut             bigint NOT NULL,        -- number of the request to close
  frozen_position bigint NOT NULL,        -- number of the event that closed the period
  frozen_at       timestamptz NOT NULL,
  logic           text COLLATE "C" NOT NULL,
  logic_hash      text COLLATE "C" NOT NULL,
  figures_hash    text COLLATE "C" NOT NULL,
  lines           int NOT NULL,
  despite         text[] NOT NULL,
  PRIMARY KEY (tenant_id, period_key, snapshot)
);
CREATE TABLE period_lines (
  tenant_id       uuid NOT NULL,
  period_key      text COLLATE "C" NOT NULL,
  snapshot        int NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  subscription_id uuid NOT NULL,
  amount          numeric NOT NULL,
  event_count     bigint NOT NULL,
  last_event_at   timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, period_key, snapshot, feature, subscription_id)
);

-- Differences of closed periods. The log writes a row when it writes the row of the verdict, or of the proposal, and changes its
-- state when it writes the row of the decision, under the lock of the head of the tenant's partition.
CREATE TABLE adjustments (
  id              uuid PRIMARY KEY,       -- id of the event at position
  tenant_id       uuid NOT NULL,
  period_key      text COLLATE "C" NOT NULL,
  snapshot        int NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  subscription_id uuid NOT NULL,
  kind            text COLLATE "C" NOT NULL CHECK (kind IN ('LATE_USAGE', 'LATE_COMMIT', 'RETRY', 'CORRECTION', 'RETRACTION', 'REBUILD')),
  amount          numeric NOT NULL,
  event_count     bigint NOT NULL,
  position        bigint NOT NULL,
  recorded        bigint NOT NULL,        -- number of the recorded event; of REBUILD the same as position
  source_event_id text COLLATE "C",       -- the producer's; NULL for REBUILD
  rebuild_id      uuid,
  state           text COLLATE "C" NOT NULL CHECK (state IN ('PENDING', 'APPROVED', 'WAIVED', 'VOID')),
  reason          text,
  decided         bigint                  -- number of the event that decided it
);
CREATE UNIQUE INDEX adjustments_once ON adjustments (tenant_id, period_key, snapshot, recorded);
CREATE INDEX adjustments_list ON adjustments (tenant_id, period_key, snapshot, position);
CREATE INDEX adjustments_sums ON adjustments (tenant_id, period_key, snapshot, feature, subscription_id) INCLUDE (state, amount, event_count, position, kind);
CREATE INDEX adjustments_of ON adjustments (tenant_id, recorded);

-- +goose StatementBegin
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['tenant_policies', 'period_changes', 'period_snapshots', 'period_lines', 'adjustments'] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I FOR SELECT TO meterplex_tenant
      USING (tenant_id = NULLIF(current_setting(''meterplex.tenant_id'', true), '''')::uuid)', t);
    EXECUTE format('CREATE POLICY worker ON %I TO meterplex_worker USING (true) WITH CHECK (true)', t);
    EXECUTE format('GRANT SELECT, INSERT ON %I TO meterplex_worker', t);
    EXECUTE format('GRANT SELECT ON %I TO meterplex_tenant', t);
  END LOOP;
END $$;
-- +goose StatementEnd
GRANT UPDATE ON adjustments TO meterplex_worker;
