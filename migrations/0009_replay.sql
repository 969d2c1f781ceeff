-- +goose Up
-- Publishing again, on purpose: ranges of the log for outside readers, the relay's
-- cursors and consumers' offsets moved back.
CREATE TABLE replays (
  id         uuid PRIMARY KEY,             -- the id of the event that asked for it
  kind       text NOT NULL CHECK (kind IN ('range', 'relay', 'consumer')),
  topic      smallint NOT NULL DEFAULT 0,  -- of a range, and of a consumer
  tenant_id  uuid,                         -- only this one's events
  consumer   text NOT NULL DEFAULT '',
  target     text NOT NULL DEFAULT '',     -- where a rewind goes: consumers, start, positions, or a time
  reason     text NOT NULL,
  state      text NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'FAILED')),
  failure    text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL,
  ended_at   timestamptz
);
CREATE INDEX replays_running ON replays (kind, id) WHERE state = 'RUNNING';

-- A unit of a replay is a log partition. cursor and upto are positions of the log;
-- those of a consumer's rewind are filled in when it has gone back: offsets of the
-- pipe, from and to. The lease says who publishes; the fence is compared with every
-- step of the cursor.
CREATE TABLE replay_units (
  replay_id   uuid     NOT NULL REFERENCES replays,
  partition   smallint NOT NULL,
  first       bigint   NOT NULL,
  cursor      bigint   NOT NULL,            -- published up to here
  upto        bigint   NOT NULL,
  records     bigint   NOT NULL DEFAULT 0,
  fence       bigint   NOT NULL DEFAULT 0,
  lease_until timestamptz NOT NULL DEFAULT '-infinity',
  PRIMARY KEY (replay_id, partition)
) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE ON replays, replay_units TO meterplex_worker;

-- Up to where the relay had published before it was first moved back: what it
-- publishes again below that is no backlog of ingestion's.
ALTER TABLE relay_cursors ADD COLUMN furthest bigint NOT NULL DEFAULT 0;

-- What is published again lies elsewhere on the broker: of all runs that hold a
-- position the newest counts. A run is no longer than a batch of the relay's, so
-- that few can begin that short a way before it.
GRANT UPDATE ON outbox_publications TO meterplex_worker;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION broker_place(of_partition smallint, of_topic smallint, of_position bigint)
RETURNS TABLE (broker_offset bigint, published_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 1
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
  RETURN QUERY
  SELECT o.base_offset + (
           SELECT count(*) FROM event_log_rows l
            WHERE l.partition = of_partition AND l.position >= o.from_position AND l.position < of_position AND l.topic = of_topic),
         o.published_at
    FROM (SELECT * FROM outbox_publications p
           WHERE p.partition = of_partition AND p.topic = of_topic
             AND p.from_position <= of_position AND p.from_position > of_position - 10000 AND p.to_position >= of_position
           ORDER BY p.published_at DESC, p.from_position DESC LIMIT 1) o
   WHERE o.base_offset >= 0;
END $$;
-- +goose StatementEnd

-- The last position that was recorded before a time, 0 where none was. Positions
-- are dense and their times never fall, so that it is found by halves.
-- +goose StatementBegin
CREATE FUNCTION position_before(of_partition smallint, at timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = public, pg_temp SET enable_seqscan = off AS $$
DECLARE
  low    bigint; -- recorded before at, or 0
  high   bigint; -- not, or beyond the head
  middle bigint;
  before boolean;
BEGIN
  SELECT coalesce(min(l.position), 1) - 1 INTO low FROM event_log_rows l WHERE l.partition = of_partition;
  SELECT h.position + 1 INTO high FROM log_heads h WHERE h.partition = of_partition;
  WHILE high - low > 1 LOOP
    middle := low + (high - low) / 2;
    SELECT l.recorded_at < at INTO before FROM event_log_rows l WHERE l.partition = of_partition AND l.position = middle;
    IF before THEN low := middle; ELSE high := middle; END IF;
  END LOOP;
  RETURN low;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION position_before FROM PUBLIC;
GRANT EXECUTE ON FUNCTION position_before TO meterplex_worker;

-- The inbox of what does not come from the log: messages of usage.commands of which
-- something was refused, each claimed by the refusal's own row. What was accepted is
-- claimed by its event's key.
CREATE VIEW inbox AS
SELECT 'meterplex-usage-commands' AS consumer, substr(dedupe_key, 3) AS event_id, tenant_id, partition, position, recorded_at
FROM event_log_rows WHERE dedupe_key >= 'i/' AND dedupe_key < 'i0';
GRANT SELECT ON inbox TO meterplex_worker;
