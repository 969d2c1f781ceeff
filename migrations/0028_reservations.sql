-- +goose Up
-- Stop all instances first. No event about reservations is older than it, so there is nothing to fill.
INSERT INTO required_migrations VALUES (28, 'they do not end reservations, so that limits would be refused by amounts that nobody holds');

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
ALTER TABLE reservations ENABLE ROW LEVEL SECURITY;
ALTER TABLE reservations FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON reservations FOR SELECT TO meterplex_tenant
  USING (tenant_id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);
CREATE POLICY worker ON reservations TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE ON reservations TO meterplex_worker;
GRANT SELECT ON reservations TO meterplex_tenant;

-- What reservations hold, for checks: entitlement_reads/v3 counts it.
ALTER TABLE entitlement_usage ADD COLUMN held numeric NOT NULL DEFAULT 0;

-- +goose StatementBegin
DO $$ BEGIN
  EXECUTE format('CREATE POLICY owner_expires ON reservations FOR DELETE TO %I USING (state <> ''HELD'')', current_user);
  EXECUTE format('CREATE POLICY owner_reads ON reservations FOR SELECT TO %I USING (true)', current_user);
END $$;
-- +goose StatementEnd

-- Deletes at most so many reservations that ended before an interval, and returns their number.
-- +goose StatementBegin
CREATE FUNCTION expire_reservations(older interval, most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE expired bigint;
BEGIN
  WITH old AS (
    SELECT r.tenant_id, r.feature, r.reservation_id FROM reservations r
     WHERE r.state <> 'HELD' AND r.ended_at < now() - greatest(older, interval '1 day') ORDER BY r.ended_at LIMIT most),
  deleted AS (DELETE FROM reservations r USING old WHERE r.tenant_id = old.tenant_id AND r.feature = old.feature AND r.reservation_id = old.reservation_id RETURNING 1)
  SELECT count(*) INTO expired FROM deleted;
  RETURN expired;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION expire_reservations FROM PUBLIC;
GRANT EXECUTE ON FUNCTION expire_reservations TO meterplex_worker;
