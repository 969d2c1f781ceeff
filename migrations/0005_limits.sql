-- +goose Up
-- What limits are decided by. The log changes these rows when it writes the row of an event, under the lock of the head of the tenant's partition.

-- What tenants have used of QUOTA features and hold, by period. The log changes a row when it writes the row of an event, under
-- the lock of the head of the tenant's partition; accounts have no other lock.
CREATE TABLE quota_accounts (
  tenant_id  uuid NOT NULL,
  feature    text COLLATE "C" NOT NULL,
  period_key text COLLATE "C" NOT NULL,
  used       numeric NOT NULL DEFAULT 0, -- a bigint sum can overflow
  held       numeric NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, feature, period_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- Reservations of amounts. The log writes a row when it writes the row of an event about it, under the lock of the head of the
-- tenant's partition. An ended one is kept for a time; its events remain.
CREATE TABLE reservations (
  tenant_id       uuid NOT NULL,
  reservation_id  text COLLATE "C" NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  period_key      text COLLATE "C" NOT NULL,
  subscription_id uuid NOT NULL,
  feature_type    text COLLATE "C" NOT NULL,
  amount          bigint NOT NULL,
  granted_limit   bigint,                  -- NULL: no limit
  state           text COLLATE "C" NOT NULL CHECK (state IN ('HELD', 'COMMITTED', 'RELEASED', 'EXPIRED')),
  expires_at      timestamptz NOT NULL,
  held_position   bigint NOT NULL,
  ended_position  bigint,
  ended_at        timestamptz,             -- recorded_at of the event at ended_position
  event_id        text COLLATE "C",        -- the producer's, of the committed usage
  committed       bigint,
  PRIMARY KEY (tenant_id, feature, reservation_id), -- an id belongs to one feature: the key of its first event in the log is unique
  CHECK ((state = 'HELD') = (ended_position IS NULL)),
  CHECK ((state = 'COMMITTED') = (event_id IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
CREATE INDEX reservations_due ON reservations (expires_at) WHERE state = 'HELD';
CREATE INDEX reservations_held ON reservations (tenant_id, feature, period_key, expires_at, reservation_id) WHERE state = 'HELD';
CREATE INDEX reservations_ended ON reservations (ended_at) WHERE state <> 'HELD';

-- Deletes at most so many reservations that ended before an interval, and returns their number.
-- +goose StatementBegin
CREATE FUNCTION expire_reservations(older interval, most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE expired bigint;
BEGIN
  WITH old AS (
    SELECT r.tenant_id, r.feature, r.reservation_id FROM reservations r
     WHERE r.state <> 'HELD' AND r.ended_at < now() - greatest(older, interval '1 day') ORDER BY r.ended_at LIMIT batch_size(most)),
  deleted AS (DELETE FROM reservations r USING old WHERE r.tenant_id = old.tenant_id AND r.feature = old.feature AND r.reservation_id = old.reservation_id RETURNING 1)
  SELECT count(*) INTO expired FROM deleted;
  RETURN expired;
END $$;
-- +goose StatementEnd

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

-- Thresholds of tenants, kept for ever: usage that a projection counts later needs those of its position. A row changes under the lock of the head of the
-- tenant's partition, with its event. Each is a percentage of the limit or an amount.
CREATE TABLE thresholds (
  id         uuid PRIMARY KEY,
  tenant_id  uuid NOT NULL,
  feature    text COLLATE "C",           -- NULL: each feature
  percent    bigint CHECK (percent BETWEEN 1 AND 1000),
  amount     bigint CHECK (amount > 0),
  position   bigint NOT NULL,            -- number of the event that defined it
  removed    bigint,                     -- number of the event that removed it
  created_at timestamptz NOT NULL,
  CHECK ((percent IS NULL) <> (amount IS NULL)),
  CHECK (removed > position)
);
CREATE INDEX thresholds_of_tenant ON thresholds (tenant_id, id) WHERE removed IS NULL;
CREATE INDEX thresholds_removed ON thresholds (tenant_id, removed) WHERE removed IS NOT NULL;
