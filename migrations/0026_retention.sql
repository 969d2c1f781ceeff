-- +goose NO TRANSACTION
-- +goose Up
-- Older instances go on beside it: they answer 500 to a repeat whose answer is no longer kept, and store nothing.
--
-- Retention of small tables. The service may not delete or change these rows itself: it calls functions that run as
-- the owner of the tables, and that drop no row which is younger than a day.
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS idempotency_answers_kept;
CREATE INDEX CONCURRENTLY idempotency_answers_kept ON idempotency_answers (created_at) WHERE body IS NOT NULL;
RESET lock_timeout;

-- NULL: the answer is no longer kept. Its row remains, so that the key never takes effect twice.
ALTER TABLE idempotency_answers ALTER COLUMN body DROP NOT NULL;

-- Row level security is forced on these tables, also for their owner, as whom the functions run.
-- +goose StatementBegin
DO $$ BEGIN
  DROP POLICY IF EXISTS owner_reads ON idempotency_answers;
  DROP POLICY IF EXISTS owner_expires ON idempotency_answers;
  DROP POLICY IF EXISTS owner_reads ON projection_generations;
  EXECUTE format('CREATE POLICY owner_reads ON idempotency_answers FOR SELECT TO %I USING (true)', current_user);
  EXECUTE format('CREATE POLICY owner_expires ON idempotency_answers FOR UPDATE TO %I USING (true) WITH CHECK (body IS NULL)', current_user);
  EXECUTE format('CREATE POLICY owner_reads ON projection_generations FOR SELECT TO %I USING (true)', current_user);
END $$;
-- +goose StatementEnd

-- Drops the bodies of at most so many answers that are older than an interval, and returns their number.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION expire_answers(older interval, most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE expired bigint;
BEGIN
  WITH old AS (
    SELECT a.tenant_id, a.key FROM idempotency_answers a
     WHERE a.body IS NOT NULL AND a.created_at < now() - greatest(older, interval '1 day')
     ORDER BY a.created_at LIMIT most FOR UPDATE SKIP LOCKED),
  changed AS (UPDATE idempotency_answers a SET body = NULL FROM old WHERE a.tenant_id = old.tenant_id AND a.key = old.key RETURNING 1)
  SELECT count(*) INTO expired FROM changed;
  RETURN expired;
END $$;
-- +goose StatementEnd

-- Deletes at most so many replays that ended before an interval, with their units, and returns their number. A
-- rewind of the relay is kept until the relay has published all of it again.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION expire_replays(older interval, most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE expired uuid[];
BEGIN
  SELECT coalesce(array_agg(old.id), '{}') INTO expired FROM (
    SELECT r.id FROM replays r
     WHERE r.state IN ('DONE', 'FAILED') AND r.ended_at < now() - greatest(older, interval '1 day')
       AND NOT (r.kind = 'relay' AND EXISTS (
         SELECT FROM replay_units u JOIN relay_cursors c USING (partition) WHERE u.replay_id = r.id AND c.position < u.upto))
     ORDER BY r.id LIMIT most FOR UPDATE OF r SKIP LOCKED) old;
  DELETE FROM replay_units u WHERE u.replay_id = ANY (expired);
  DELETE FROM replays r WHERE r.id = ANY (expired);
  RETURN cardinality(expired);
END $$;
-- +goose StatementEnd

-- Deletes the units of at most so many rebuilds that ended before an interval, and returns the number of rebuilds. A
-- rebuild whose generation is fed can be compared, promoted or rolled back, and needs them.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION expire_rebuild_units(older interval, most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE expired uuid[];
BEGIN
  SELECT coalesce(array_agg(old.id), '{}') INTO expired FROM (
    SELECT r.id FROM projection_rebuilds r JOIN projection_generations g USING (projection, generation)
     WHERE r.state IN ('PROMOTED', 'ROLLED_BACK', 'ABANDONED', 'FAILED') AND r.ended_at < now() - greatest(older, interval '1 day')
       AND g.dropped_at IS NOT NULL AND EXISTS (SELECT FROM rebuild_units u WHERE u.rebuild_id = r.id)
     ORDER BY r.id LIMIT most) old;
  DELETE FROM rebuild_units u WHERE u.rebuild_id = ANY (expired);
  RETURN cardinality(expired);
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION expire_answers, expire_replays, expire_rebuild_units FROM PUBLIC;
GRANT EXECUTE ON FUNCTION expire_answers, expire_replays, expire_rebuild_units TO meterplex_worker;
