-- +goose Up
-- Sagas, closed periods, pushes to billing providers, and the ends of tenants.

-- Processes of several steps, such as the close of a period: the step of each, and when it runs next. No tenant reads it. next_at and the
-- lease are times of the database's clock. An ended one is kept: its key is used once.
CREATE TABLE sagas (
  id          uuid PRIMARY KEY,
  kind        text COLLATE "C" NOT NULL CHECK (kind ~ '^[a-z][a-z0-9_]{0,39}$'),
  tenant_id   uuid NOT NULL,                       -- nil: of the platform
  key         text COLLATE "C" NOT NULL,
  step        text COLLATE "C" NOT NULL CHECK (step ~ '^[a-z][a-z0-9_]{0,39}$'),
  state       text COLLATE "C" NOT NULL CHECK (state IN ('RUNNING', 'PARTIAL', 'DRIFT', 'COMPLETED', 'COMPENSATED', 'FAILED')),
  attempts    int NOT NULL DEFAULT 0,              -- failures of the step since it last succeeded
  next_at     timestamptz NOT NULL,                -- under a lease: its end
  lease       uuid,                                -- of the instance that runs the step; a new one each time
  deadline_at timestamptz,
  missing     text[] NOT NULL DEFAULT '{}',
  despite     text[] NOT NULL DEFAULT '{}',
  last_error  text NOT NULL DEFAULT '',
  retries     int NOT NULL DEFAULT 0,              -- by operators
  last_reason text NOT NULL DEFAULT '',            -- of the last of them
  last_actor  text NOT NULL DEFAULT '',
  outcome     text COLLATE "C" CHECK (outcome IN ('success', 'compensated', 'partial')),
  created_at  timestamptz NOT NULL,
  ended_at    timestamptz,
  UNIQUE (kind, tenant_id, key),
  CHECK ((state IN ('COMPLETED', 'COMPENSATED', 'FAILED')) = (ended_at IS NOT NULL)),
  CHECK ((ended_at IS NULL) = (outcome IS NULL)),
  CHECK (ended_at IS NULL OR lease IS NULL)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX sagas_open ON sagas (next_at) WHERE ended_at IS NULL;
CREATE INDEX sagas_of_tenant ON sagas (tenant_id, id);

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
  charges_hash    text COLLATE "C",
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
CREATE INDEX adjustments_positions ON adjustments (tenant_id, position);
-- The adjustments of all tenants in one state, such as the few that are approved, in the order of their ids.
CREATE INDEX adjustments_states ON adjustments (state, id);

-- Amounts that a billing provider counts. A row is stored before its first attempt, under the lock of the head of the tenant's partition; amount, key and
-- time never change; customer and event only while the provider surely has not counted it. Times are of the database's clock.
CREATE TABLE pushes (
  id               uuid PRIMARY KEY,
  tenant_id        uuid NOT NULL,
  feature          text COLLATE "C" NOT NULL,
  period_key       text COLLATE "C" NOT NULL,
  snapshot         int NOT NULL CHECK (snapshot > 0),
  n                int NOT NULL CHECK (n >= 0),        -- 0: the first push of the snapshot; k: of its k-th adjustment
  amount           numeric NOT NULL CHECK (amount <> 0 AND amount = trunc(amount)),
  provider         text COLLATE "C" NOT NULL,
  customer         text COLLATE "C" NOT NULL,
  event            text COLLATE "C" NOT NULL,
  key              text COLLATE "C" NOT NULL UNIQUE,
  identifier       text COLLATE "C" NOT NULL UNIQUE,
  counted_at       timestamptz NOT NULL,               -- the timestamp of the provider's event
  state            text COLLATE "C" NOT NULL CHECK (state IN ('PENDING', 'UNKNOWN', 'DELIVERED', 'FAILED')),
  attempts         int NOT NULL DEFAULT 0,
  failures         int NOT NULL DEFAULT 0,
  stored_at        timestamptz NOT NULL,
  first_attempt_at timestamptz,
  attempted_at     timestamptz,                        -- the last attempt
  unknown_since    timestamptz,                        -- the first attempt that the provider may have counted
  next_at          timestamptz,                        -- NULL: no attempt follows by itself
  delivered_at     timestamptz,
  last_code        text NOT NULL DEFAULT '',
  last_error       text NOT NULL DEFAULT '',
  last_reason      text NOT NULL DEFAULT '',           -- of an operator
  last_actor       text NOT NULL DEFAULT '',
  renewals         int NOT NULL DEFAULT 0,             -- refusals so far: after one an attempt has another idempotency key
  UNIQUE (tenant_id, period_key, feature, snapshot, n),
  CHECK ((state = 'DELIVERED') = (delivered_at IS NOT NULL)),
  CHECK (state <> 'UNKNOWN' OR unknown_since IS NOT NULL),
  CHECK (state NOT IN ('DELIVERED', 'FAILED') OR next_at IS NULL)
) WITH (fillfactor = 80);
CREATE INDEX pushes_open ON pushes (tenant_id, period_key) WHERE state <> 'DELIVERED';
CREATE INDEX pushes_list ON pushes (tenant_id, id);
CREATE INDEX pushes_windows ON pushes (counted_at);

-- The last comparison of a customer's meter in a month with the provider's total.
CREATE TABLE push_comparisons (
  provider    text COLLATE "C" NOT NULL,
  customer    text COLLATE "C" NOT NULL,
  event       text COLLATE "C" NOT NULL,
  month       text COLLATE "C" NOT NULL,
  total       numeric NOT NULL,                        -- the provider's
  delivered   numeric NOT NULL,
  compared_at timestamptz NOT NULL,
  PRIMARY KEY (provider, customer, event, month)
);
-- Those that found a difference, which every instance counts each few seconds.
CREATE INDEX push_comparisons_different ON push_comparisons (month) WHERE total <> delivered;

-- The ends of tenants, kept for ever. A row changes under the lock of the head of the tenant's partition, with the event of its step.
CREATE TABLE offboardings (
  id             uuid PRIMARY KEY,
  tenant_id      uuid NOT NULL,
  saga_id        uuid NOT NULL,
  state          text COLLATE "C" NOT NULL CHECK (state IN ('RUNNING', 'CANCELLING', 'CANCELLED', 'ARCHIVED')),
  step           text COLLATE "C" NOT NULL,            -- the last that ended
  reason         text NOT NULL,
  actor          text NOT NULL,
  cancel_reason  text NOT NULL DEFAULT '',
  cancel_actor   text NOT NULL DEFAULT '',
  requested_at   timestamptz NOT NULL,
  suspended_at   timestamptz,
  drained_to     bigint NOT NULL DEFAULT 0,            -- usage recorded up to this number counts before periods are closed
  closed         text[] COLLATE "C" NOT NULL DEFAULT '{}', -- periods that it closed before their end, as key/snapshot
  exports        int NOT NULL DEFAULT 0,
  manifest       text,                                 -- byte for byte
  ended_at       timestamptz,
  CHECK ((state IN ('CANCELLED', 'ARCHIVED')) = (ended_at IS NOT NULL))
);
CREATE UNIQUE INDEX offboardings_open ON offboardings (tenant_id) WHERE state <> 'CANCELLED';
CREATE INDEX offboardings_last ON offboardings (tenant_id, id);
