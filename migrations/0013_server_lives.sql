-- +goose Up
-- An epoch is a life of the database server: from one start of it to the next. A server
-- that was promoted or set back issues positions a second time, so the transaction that
-- locks a head compares the head's life with the server's and raises the epoch first
-- (infra/postgres/eventlog/epoch.go). NULL differs from every life: the first lock of each head
-- after this migration raises its epoch.
ALTER TABLE log_heads
  ADD COLUMN system_identifier bigint,
  ADD COLUMN timeline          bigint,
  ADD COLUMN started_at        timestamptz;
ALTER TABLE log_epochs
  ADD COLUMN started_at timestamptz,
  ADD COLUMN reason     text NOT NULL DEFAULT 'first' CHECK (reason IN ('first', 'restarted', 'promoted', 'restored', 'set_back'));

-- The server's life now. The first eight digits of a WAL file's name are the timeline.
-- Written to be inlined: VOLATILE because pg_current_wal_lsn is.
CREATE FUNCTION server_life(OUT system_identifier bigint, OUT timeline bigint, OUT started_at timestamptz)
LANGUAGE sql VOLATILE AS $$
  SELECT system_identifier, ('x' || lpad(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), 16, '0'))::bit(64)::bigint, pg_postmaster_start_time()
  FROM pg_control_system()
$$;

-- Whether a head's life is the server's. It leaves out the system identifier, which is read
-- from a file and costs six times the rest: no two servers start in the same microsecond.
CREATE FUNCTION is_server_life(timeline bigint, started_at timestamptz) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
  SELECT started_at IS NOT DISTINCT FROM pg_postmaster_start_time()
     AND timeline IS NOT DISTINCT FROM ('x' || lpad(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), 16, '0'))::bit(64)::bigint
$$;

-- The log's name in the headers of its records. Two databases may share a Kafka by mistake;
-- neither folds the other's records.
CREATE TABLE log_identity (
  log_id   uuid    NOT NULL DEFAULT gen_random_uuid(),
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
INSERT INTO log_identity DEFAULT VALUES;

REVOKE ALL ON FUNCTION server_life, is_server_life FROM PUBLIC;
GRANT EXECUTE ON FUNCTION server_life, is_server_life TO meterplex_worker;
GRANT SELECT ON log_identity TO meterplex_worker;

INSERT INTO required_migrations VALUES
  (13, 'they append to a promoted or restored database without raising the epoch, and fold records of another log');
