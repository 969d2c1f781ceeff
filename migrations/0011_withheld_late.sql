-- +goose Up
-- Late is what was withheld when its consumer had read it from the log already: it
-- is folded, so that it is not parked, has no dead letter and is in every rebuild.
-- Only who reads the topic from outside gets the stand-in.
--
-- All who read the table wait behind this while it waits for a long read: it gives
-- up soon, and comes again.
SET LOCAL lock_timeout = '2s';
ALTER TABLE withheld_records ADD COLUMN late boolean NOT NULL DEFAULT false;
ALTER TABLE withheld_records ALTER COLUMN dead_letter_id DROP NOT NULL;
ALTER TABLE withheld_records ADD CONSTRAINT withheld_late CHECK (late = (dead_letter_id IS NULL));

-- Nothing is to be done about what was withheld late: it is not shown as failed.
CREATE OR REPLACE VIEW outbox_events AS
SELECT l.partition, l.position, l.event_id, l.tenant_id, l.topic, l.subject, l.recorded_at,
       CASE WHEN w.position IS NOT NULL THEN 'failed'
            WHEN l.position <= c.position THEN 'published'
            ELSE 'pending' END AS status,
       CASE WHEN l.position = c.position + 1 THEN c.attempts ELSE 0 END AS attempts,
       CASE WHEN l.position > c.position THEN now() - l.recorded_at END AS age
FROM event_log_rows l
JOIN relay_cursors c USING (partition)
LEFT JOIN withheld_records w ON w.partition = l.partition AND w.position = l.position AND NOT w.late;
