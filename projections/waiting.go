package projections

import "strings"

// FirstWaiting returns an expression: when the first event was recorded that a consumer has not passed in a partition, or NULL if no
// event waits. The arguments are expressions, too: after is the consumer's checkpoint, upTo the last position of its topic. A topic that is
// NULL means the whole log.
//
// No index knows topics, and any number of events of others may lie before the first. So it walks from the topic's last event along the
// positions before on the topic, and jumps where it can: to the first event of the topic in 64 rows behind the checkpoint, or in the middle
// of the rest. A long backlog, and one of a few bursts, needs few steps. Events that lie far apart need a step each. After 256 the
// result is an event that waits but is not the first, so that its age is too low.
func FirstWaiting(partition, after, upTo, topic string) string {
	return strings.NewReplacer("{partition}", partition, "{after}", after, "{upTo}", upTo, "{topic}", topic).Replace(firstWaiting)
}

// w.previous is the position before on the topic, and 0 in the whole log, whose walk has one row. Jumps have found no event in (after,
// w.low]; a walk that meets one there jumps into all that is left again.
const firstWaiting = `CASE WHEN {upTo} > {after} THEN (
  WITH RECURSIVE walk (position, previous, recorded_at, low, n) AS (
    (SELECT l.position, CASE WHEN {topic} IS NULL THEN 0 ELSE l.previous_position END, l.recorded_at, {after}, 0 FROM event_log_rows l
     WHERE l.partition = {partition} AND l.position >= CASE WHEN {topic} IS NULL THEN {after} + 1 ELSE {upTo} END AND l.position <= {upTo}
     ORDER BY l.position LIMIT 1)
    UNION ALL
    SELECT s.position, s.previous_position, s.recorded_at,
    CASE WHEN s.position > m.at + 64 THEN m.at WHEN s.position > w.low THEN w.low ELSE {after} END, w.n + 1
    FROM walk w
    CROSS JOIN LATERAL (SELECT CASE WHEN w.n = 0 THEN {after} ELSE (w.low + w.position) / 2 END AS at) m
    CROSS JOIN LATERAL (
      (SELECT l.position, l.previous_position, l.recorded_at FROM event_log_rows l
       WHERE w.n < 96 AND l.partition = {partition} AND l.position > m.at AND l.position <= least(m.at + 64, w.previous)
       AND l.topic = {topic} ORDER BY l.position LIMIT 1)
      UNION ALL
      (SELECT l.position, l.previous_position, l.recorded_at FROM event_log_rows l WHERE l.partition = {partition}
      AND l.position = w.previous LIMIT 1)
      ORDER BY position LIMIT 1) s
    WHERE w.previous > {after} AND w.n < 256)
  SELECT w.recorded_at FROM walk w ORDER BY w.n DESC LIMIT 1) END`
