-- +goose Up
-- The way of the log to the broker, and publishing again.

-- The log behind a cursor for each partition is the outbox. The lease says who may publish; the fence grows with each change of hands and is compared with
-- every step of the cursor.
CREATE TABLE relay_cursors (
  partition       smallint PRIMARY KEY,
  position        bigint NOT NULL DEFAULT 0,
  fence           bigint NOT NULL DEFAULT 0,
  owner           text,
  lease_until     timestamptz NOT NULL DEFAULT 'epoch',
  attempts        int    NOT NULL DEFAULT 0,   -- failed ones since the last step
  last_error      text,
  last_attempt_at timestamptz,
  furthest        bigint NOT NULL DEFAULT 0    -- published up to here before it was first moved back: what lies below is no backlog of ingest
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
INSERT INTO relay_cursors (partition) SELECT generate_series(0, 31);

-- Who shares the partitions; an instance that was not heard of for a lease's time does not count.
CREATE TABLE relay_instances (
  instance text PRIMARY KEY,
  seen_at  timestamptz NOT NULL
);

-- Where a run of events of one topic came to lie on the broker: the receipt's offset is base_offset + the rank among the topic's events from from_position
-- on. The relay deletes runs that are older than their topic's retention.
CREATE TABLE outbox_publications (
  partition     smallint NOT NULL,
  topic         smallint NOT NULL,
  from_position bigint   NOT NULL,
  to_position   bigint   NOT NULL,
  base_offset   bigint   NOT NULL,
  published_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (partition, topic, from_position)
);

-- What alone could not be published: in its place a small record without payload was, and a dead letter of stage PUBLISHING stands for it. Late is what was
-- withheld when its consumer had read it from the log already: it is folded, so that it is not parked, has no dead letter and is in every rebuild.
CREATE TABLE withheld_records (
  partition      smallint NOT NULL,
  position       bigint   NOT NULL,
  topic          smallint NOT NULL,
  tenant_id      uuid     NOT NULL,
  dead_letter_id uuid,
  reason         text     NOT NULL,
  withheld_at    timestamptz NOT NULL DEFAULT now(),
  late           boolean  NOT NULL DEFAULT false,
  PRIMARY KEY (partition, position),
  CONSTRAINT withheld_late CHECK (late = (dead_letter_id IS NULL))
);
-- Lists, newest first, of a topic and of a tenant: a page reads the first rows of each topic.
CREATE INDEX withheld_records_topic ON withheld_records (topic, withheld_at, partition, position);
CREATE INDEX withheld_records_tenant ON withheld_records (tenant_id, topic, withheld_at, partition, position);

-- Nothing is to be done about what was withheld late: it is not shown as failed.
CREATE VIEW outbox_events AS
SELECT l.partition, l.position, l.event_id, l.tenant_id, l.topic, l.subject, l.recorded_at,
       CASE WHEN w.position IS NOT NULL THEN 'failed'
            WHEN l.position <= c.position THEN 'published'
            ELSE 'pending' END AS status,
       CASE WHEN l.position = c.position + 1 THEN c.attempts ELSE 0 END AS attempts,
       CASE WHEN l.position > c.position THEN now() - l.recorded_at END AS age
FROM event_log_rows l
JOIN relay_cursors c USING (partition)
LEFT JOIN withheld_records w ON w.partition = l.partition AND w.position = l.position AND NOT w.late;

-- Where an event lies on the broker: the rank among the topic's events is counted over all tenants. No row where it is not published, or nobody noted where.
-- What is published again lies elsewhere: of all runs that hold a position the newest counts. A run is no longer than a batch of the relay's, so that few
-- can begin that short a way before it.
-- +goose StatementBegin
CREATE FUNCTION broker_place(of_partition smallint, of_topic smallint, of_position bigint)
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

-- Publishing and reading again, on purpose: ranges of the log for outside readers, the relay's cursors and the offsets of usage.commands moved back.
CREATE TABLE replays (
  id         uuid PRIMARY KEY,             -- the id of the event that asked for it
  kind       text NOT NULL CHECK (kind IN ('range', 'relay', 'consumer')),
  topic      smallint NOT NULL DEFAULT 0,  -- of a range, and of a consumer
  tenant_id  uuid,                         -- only this one's events
  consumer   text NOT NULL DEFAULT '',
  target     text NOT NULL DEFAULT '',     -- where a rewind goes: start, positions, or a time
  reason     text NOT NULL,
  state      text NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'FAILED')),
  failure    text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL,
  ended_at   timestamptz
);
CREATE INDEX replays_running ON replays (kind, id) WHERE state = 'RUNNING';

-- A unit of a replay is a log partition. cursor and upto are positions of the log; those of usage.commands' rewind are filled in when it has gone back: offsets
-- of the pipe, from and to. A saga leases a range to one instance; each step of a cursor is compared with its last one.
CREATE TABLE replay_units (
  replay_id   uuid     NOT NULL REFERENCES replays,
  partition   smallint NOT NULL,
  first       bigint   NOT NULL,
  cursor      bigint   NOT NULL,            -- published up to here
  upto        bigint   NOT NULL,
  records     bigint   NOT NULL DEFAULT 0,
  PRIMARY KEY (replay_id, partition)
) WITH (fillfactor = 50);

-- Deletes at most so many replays that ended before an interval, with their units, and returns their number. A rewind of the relay is kept until the relay
-- has published all of it again.
-- +goose StatementBegin
CREATE FUNCTION expire_replays(older interval, most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE expired uuid[];
BEGIN
  SELECT coalesce(array_agg(old.id), '{}') INTO expired FROM (
    SELECT r.id FROM replays r
     WHERE r.state IN ('DONE', 'FAILED') AND r.ended_at < now() - greatest(older, interval '1 day')
       AND NOT (r.kind = 'relay' AND EXISTS (
         SELECT FROM replay_units u JOIN relay_cursors c USING (partition) WHERE u.replay_id = r.id AND c.position < u.upto))
     ORDER BY r.id LIMIT batch_size(most) FOR UPDATE OF r SKIP LOCKED) old;
  DELETE FROM replay_units u WHERE u.replay_id = ANY (expired);
  DELETE FROM replays r WHERE r.id = ANY (expired);
  RETURN cardinality(expired);
END $$;
-- +goose StatementEnd
