package deadletters

import (
	"time"

	"github.com/meterplex/meterplex/events"
)

// Groups are read from dead_letter_counts, which triggers of dead_letter_events keep in the transaction of each change: a row for the dead
// letters of a tenant, a cause and a topic, and one for those of each slot of time. So a group with a million dead letters costs no more
// than one with ten. Only the edges of a filter's times, which are parts of a slot, are counted from the dead letters.

// slotTime is the length of a slot. The function dead_letter_slot knows it, too.
const slotTime = 5 * time.Minute

// allSlots is the slot of the row that counts the dead letters of all times.
const allSlots = -1

// slots are those of a filter's times, with the edges before and after them.
type slots struct {
	from, to           int64 // to is not included
	edgeFrom, edgeUpTo []time.Time
}

// slotsOf returns the slots of the times from one, included, to another; nil: no bound.
func slotsOf(from, to *time.Time) slots {
	if from == nil && to == nil {
		return slots{from: allSlots, to: allSlots + 1}
	}
	s := slots{from: 0, to: 1 << 62}
	if from != nil {
		s.from = max(0, slotOf(from.Add(slotTime-time.Microsecond)))
	}
	if to != nil {
		s.to = max(0, slotOf(*to))
	}
	switch {
	case from != nil && to != nil && s.from > s.to:
		s.edge(*from, *to) // both in one slot
	default:
		if from != nil {
			s.edge(*from, slotStart(s.from))
		}
		if to != nil {
			s.edge(slotStart(s.to), *to)
		}
	}
	return s
}

func (s *slots) edge(from, to time.Time) {
	if from.Before(to) {
		s.edgeFrom, s.edgeUpTo = append(s.edgeFrom, from), append(s.edgeUpTo, to)
	}
}

func slotOf(at time.Time) int64 {
	seconds, length := at.Unix(), int64(slotTime/time.Second)
	if seconds < 0 {
		return -1
	}
	return seconds / length
}

func slotStart(slot int64) time.Time { return time.Unix(slot*int64(slotTime/time.Second), 0).UTC() }

// isCounted reports whether dead_letter_counts answers a filter quickly: the other filters name dead letters, or those of one tenant, which
// an index finds.
func isCounted(f *events.DeadLetterFilter) bool { return f.IDs == nil && f.TenantID == nil }

// countedArgs are the parameters of readCountedGroups, which come after those of readDeadLetterGroups.
func countedArgs(f *events.DeadLetterFilter) []any {
	s, statuses := slotsOf(f.From, f.To), []string{f.Status}
	if f.Status == "" {
		statuses = []string{events.StatusFailed, events.StatusRetrying, events.StatusResolved, events.StatusDiscarded}
	}
	return []any{s.from, s.to, s.edgeFrom, s.edgeUpTo, statuses}
}

// liveOf is the generation that readers see of a row's tenant.
const liveOf = ` = (SELECT live.generation FROM live WHERE live.tenant_id IN (x.tenant_id, '00000000-0000-0000-0000-000000000000')
                        ORDER BY live.tenant_id DESC LIMIT 1)`

// The look-ups of the first, the last and the newest letter of a group, by status. One index has each of these orders, and no other has it:
// with another one, which has the ids of all causes in order, the server would walk through them until it meets one of the cause and the
// status. So the id is compared as bytes.
const (
	eachOfCause = ` FROM unnest(g.generations) k (generation) CROSS JOIN unnest($19::text[]) s (status) CROSS JOIN LATERAL (`
	ofCause     = ` FROM dead_letter_events x WHERE x.generation = k.generation AND x.fingerprint = g.fingerprint AND x.generation` +
		liveOf + `
      AND ($4::timestamptz IS NULL OR x.first_failed_at >= $4) AND ($5::timestamptz IS NULL OR x.first_failed_at < $5)
      AND ($9 = '' OR x.topic = $9)`
	hasLetters = ` WHERE CASE s.status WHEN 'FAILED' THEN g.failed WHEN 'RETRYING' THEN g.retrying WHEN 'RESOLVED' THEN g.resolved
	 ELSE g.discarded END > 0`
	firstOfCause = `(SELECT d.first_failed_at AS at` + eachOfCause + `
    SELECT x.first_failed_at` + ofCause + ` AND x.status = s.status ORDER BY x.first_failed_at LIMIT 1) d` + hasLetters +
		` ORDER BY d.first_failed_at LIMIT 1)`
	lastOfCause = `(SELECT d.last_failed_at AS at` + eachOfCause + `
    SELECT x.last_failed_at` + ofCause + ` AND x.status = s.status ORDER BY x.last_failed_at DESC LIMIT 1) d` + hasLetters +
		` ORDER BY d.last_failed_at DESC LIMIT 1)`
	newestOfCause = `(SELECT k.generation, d.id` + eachOfCause + `
    SELECT x.id` + ofCause + ` AND x.status = s.status ORDER BY uuid_send(x.id) DESC LIMIT 1) d` + hasLetters +
		` ORDER BY d.id DESC LIMIT 1)`
)

// The same groups as readDeadLetterGroups. The order of the edges makes the server use the index that has it: two others begin with the
// same columns.
const readCountedGroups = `
WITH live AS MATERIALIZED (
  SELECT p.tenant_id, p.generation FROM projection_pointers p WHERE p.live AND p.projection = 'dead_letter_events'),
causes AS MATERIALIZED (
  SELECT DISTINCT x.generation, x.fingerprint FROM dead_letter_counts x
  WHERE cardinality($17::timestamptz[]) > 0 AND x.generation IN (SELECT generation FROM live) AND x.slot = -1 AND ($6 = ''
  OR x.fingerprint = $6)),
counts AS (
  SELECT x.generation, x.fingerprint, x.tenant_id, CASE WHEN $1 IN ('', 'FAILED') THEN x.failed ELSE 0 END AS failed, CASE WHEN $1 IN ('',
  'RETRYING') THEN x.retrying ELSE 0 END AS retrying,
         CASE WHEN $1 IN ('', 'RESOLVED') THEN x.resolved ELSE 0 END AS resolved, CASE WHEN $1 IN ('',
         'DISCARDED') THEN x.discarded ELSE 0 END AS discarded
  FROM dead_letter_counts x
  WHERE x.generation IN (SELECT generation FROM live) AND x.slot >= $15 AND x.slot < $16 AND x.generation` + liveOf +
	` AND ($6 = '' OR x.fingerprint = $6) AND ($9 = '' OR x.topic = $9)
  UNION ALL
  SELECT k.generation, k.fingerprint, d.tenant_id, CASE s.status WHEN 'FAILED' THEN d.n ELSE 0 END,
  CASE s.status WHEN 'RETRYING' THEN d.n ELSE 0 END,
         CASE s.status WHEN 'RESOLVED' THEN d.n ELSE 0 END, CASE s.status WHEN 'DISCARDED' THEN d.n ELSE 0 END
  FROM unnest($17::timestamptz[], $18::timestamptz[]) e (since, until) CROSS JOIN causes k CROSS JOIN unnest($19::text[]) s (status)
  CROSS JOIN LATERAL (
    SELECT o.tenant_id, count(*) AS n FROM (
      SELECT x.tenant_id FROM dead_letter_events x
      WHERE x.generation = k.generation AND x.fingerprint = k.fingerprint AND x.status = s.status AND x.first_failed_at >= e.since
      AND x.first_failed_at < e.until
        AND x.generation` + liveOf + ` AND ($9 = '' OR x.topic = $9)
      ORDER BY x.first_failed_at OFFSET 0) o
    GROUP BY o.tenant_id) d),
groups AS (
  SELECT c.fingerprint, array_agg(DISTINCT c.generation) AS generations, sum(c.failed + c.retrying + c.resolved + c.discarded)::bigint AS n,
         sum(c.failed)::bigint AS failed, sum(c.retrying)::bigint AS retrying, sum(c.resolved)::bigint AS resolved,
         sum(c.discarded)::bigint AS discarded, count(DISTINCT c.tenant_id) AS tenants
  FROM counts c WHERE c.failed + c.retrying + c.resolved + c.discarded > 0
  GROUP BY c.fingerprint),
page AS (
  SELECT * FROM groups g
  WHERE ($12::bigint IS NULL OR (g.n, g.fingerprint) < ($12, $13 COLLATE "C"))
    AND ($2 = '' AND $3 = '' AND $7 = '' AND $8 = '' OR EXISTS (
      SELECT FROM dead_letter_events d WHERE d.generation = g.generations[1] AND d.fingerprint = g.fingerprint
         AND ($2 = '' OR d.stage = $2) AND ($3 = '' OR d.code = $3) AND ($7 = '' OR d.feature = $7) AND ($8 = ''
         OR d.details ->> 'consumer' = $8)))
  ORDER BY g.n DESC, g.fingerprint DESC
  LIMIT $14)
SELECT g.fingerprint, d.stage, d.code, d.reason, d.feature, coalesce(d.details ->> 'consumer', ''), g.n, g.failed, g.retrying, g.resolved,
g.discarded,
       g.tenants, first.at, last.at, newest.id
FROM page g
CROSS JOIN LATERAL ` + firstOfCause + ` first
CROSS JOIN LATERAL ` + lastOfCause + ` last
CROSS JOIN LATERAL ` + newestOfCause + ` newest
JOIN dead_letter_events d ON d.generation = newest.generation AND d.id = newest.id
WHERE $10::uuid[] IS NULL AND $11::uuid IS NULL
ORDER BY g.n DESC, g.fingerprint DESC`
