-- +goose Up
-- The log behind a cursor for each partition is the outbox. The lease says who
-- may publish; the fence grows with each change of hands and is compared with
-- every step of the cursor.
CREATE TABLE relay_cursors (
  partition       smallint PRIMARY KEY,
  position        bigint NOT NULL DEFAULT 0,
  fence           bigint NOT NULL DEFAULT 0,
  owner           text,
  lease_until     timestamptz NOT NULL DEFAULT 'epoch',
  attempts        int    NOT NULL DEFAULT 0,   -- failed ones since the last step
  last_error      text,
  last_attempt_at timestamptz
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
INSERT INTO relay_cursors (partition) SELECT generate_series(0, 31);

-- Who shares the partitions; an instance that was not heard of for a lease's time does not count.
CREATE TABLE relay_instances (
  instance text PRIMARY KEY,
  seen_at  timestamptz NOT NULL
);

-- Where a run of events of one topic came to lie on the broker: the receipt's
-- offset is base_offset + the rank among the topic's events from from_position on.
CREATE TABLE outbox_publications (
  partition     smallint NOT NULL,
  topic         smallint NOT NULL,
  from_position bigint   NOT NULL,
  to_position   bigint   NOT NULL,
  base_offset   bigint   NOT NULL,
  published_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (partition, topic, from_position)
);

-- What alone could not be published: in its place a small record without payload
-- was, and a dead letter of stage PUBLISHING stands for it.
CREATE TABLE withheld_records (
  partition      smallint NOT NULL,
  position       bigint   NOT NULL,
  topic          smallint NOT NULL,
  tenant_id      uuid     NOT NULL,
  dead_letter_id uuid     NOT NULL,
  reason         text     NOT NULL,
  withheld_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (partition, position)
);

CREATE VIEW outbox_events AS
SELECT l.partition, l.position, l.event_id, l.tenant_id, l.topic, l.subject, l.recorded_at,
       CASE WHEN w.position IS NOT NULL THEN 'failed'
            WHEN l.position <= c.position THEN 'published'
            ELSE 'pending' END AS status,
       CASE WHEN l.position = c.position + 1 THEN c.attempts ELSE 0 END AS attempts,
       CASE WHEN l.position > c.position THEN now() - l.recorded_at END AS age
FROM event_log_rows l
JOIN relay_cursors c USING (partition)
LEFT JOIN withheld_records w ON w.partition = l.partition AND w.position = l.position;

GRANT SELECT, INSERT, UPDATE ON relay_cursors TO meterplex_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON relay_instances TO meterplex_worker;
GRANT SELECT, INSERT ON outbox_publications, withheld_records TO meterplex_worker;
GRANT SELECT ON outbox_events TO meterplex_worker;
GRANT SELECT ON relay_cursors, outbox_publications TO meterplex_tenant;
